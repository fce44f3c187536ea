"""`raydix trace ...`: traces of requests, for `raydix plan` and `raydix bench --trace`."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from raydix.errors import ConfigError
from raydix.runtime.cli.trace_record import record
from raydix.runtime.foresight.traces import BLOCK_TOKENS, write_trace
from raydix.runtime.foresight.workloads import WORKLOADS, make_trace

app = typer.Typer(help="Traces of requests.", no_args_is_help=True)


class Workload(StrEnum):
    """The workloads that can be made up."""

    AGENTS = "agents"
    CHAT = "chat"
    CODE_COMPLETION = "code_completion"
    DOCUMENT_QA = "document_qa"
    LONG_CONTEXT = "long_context"


@app.callback()
def about() -> None:
    """Traces of requests, in Mooncake's format, for `raydix plan` and `raydix bench --trace`."""


@app.command()
def make(
    workload: Annotated[Workload, typer.Argument(help="What its sessions are like.")],
    out: Annotated[Path, typer.Option(help="The file; a name that ends with .gz is compressed.")],
    seed: Annotated[int, typer.Option(min=0, help="The same seed makes the same bytes.")] = 0,
) -> None:
    """Make a trace up: sessions that grow turn by turn. What they are like is a guess."""
    requests = sorted(make_trace(WORKLOADS[workload], seed), key=lambda each: each.arrival_s)
    try:
        write_trace(out, requests)
    except OSError as error:
        raise ConfigError(
            f"--out {out} cannot be written: {error.strerror}. Name a file in a folder of yours."
        ) from error
    print(f"{out}: {len(requests):,} requests, blocks of {BLOCK_TOKENS} tokens")


app.command()(record)
