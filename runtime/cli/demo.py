"""`raydix demo`: chat through all three tiers, restart the engine, and go on chatting."""

import asyncio
import contextlib
import os
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from raydix.errors import ConfigError
from raydix.runtime.actors.private_folder import PrivateFolder
from raydix.runtime.api.tokenizer import Tokenizer, load_tokenizer
from raydix.runtime.cli.demo_conversations import Conversation, chat, new_conversations
from raydix.runtime.cli.demo_models import ModelName
from raydix.runtime.cli.engine_access import start_engine
from raydix.runtime.cli.options import AsJson, Settings, sections_of
from raydix.runtime.cli.output import print_json, standard_output
from raydix.runtime.cli.source_table import TIERS, by_tier, source_table
from raydix.runtime.cli.stop_signal import until_stopped
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.config.loading import load_config

TURNS_BEFORE_RESTART = 3
TURNS_AFTER_RESTART = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """What the demo was asked for."""

    folder: Path
    """Holds L3, and the random checkpoint, which is made there if absent."""
    model: ModelName = ModelName.RANDOM
    sections: Mapping[str, Any] = field(default_factory=dict)
    """Laid over the demo's configuration."""
    verify: bool = False
    hold: bool = False


def demo(
    model: Annotated[
        ModelName, typer.Option(help="Random weights, or SmolLM2-135M-Instruct, which speaks.")
    ] = ModelName.RANDOM,
    verify: Annotated[
        bool, typer.Option("--verify", help="Compare every token with transformers.")
    ] = False,
    hold: Annotated[
        bool, typer.Option("--hold", help="Keep the second engine up until Ctrl-C.")
    ] = False,
    folder: Annotated[
        Path | None,
        typer.Option(
            help="Where L3 and the random checkpoint go and stay. Default: a temporary folder."
        ),
    ] = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Chat through all three tiers with a small model, across a restart of the engine."""
    with contextlib.ExitStack() as stack:
        out, stdout = stack.enter_context(standard_output(as_json))
        if folder is None:
            # Should this process be killed, the next engine on this host removes it.
            private = PrivateFolder()
            stack.callback(private.remove)
            folder = Path(private.path)

        # A relative one of two parts could be a model on the Hub.
        options = DemoOptions(
            folder=folder.absolute(),
            model=model,
            sections=sections_of(settings),
            verify=verify,
            hold=hold,
        )
        record = asyncio.run(run_demo(options, out))
        if as_json:
            print_json(record, stdout)
    sys.exit(0 if record["passed"] else 1)


async def run_demo(options: DemoOptions, console: Console) -> dict[str, Any]:
    """Run it all, show progress and the table on `console`, and return the record.

    The record's `passed` says whether every tier was used and no token differed.
    """
    started_s = time.monotonic()
    model = options.model.model
    checkpoint = await asyncio.to_thread(model.checkpoint, options.folder)
    config = demo_config(options, checkpoint)
    tokenizer = await asyncio.to_thread(_load_tokenizer, checkpoint)
    conversations = new_conversations(model, tokenizer)

    sources_by_phase: dict[str, Counter[str]] = {}
    for phase, num_turns, hold in (
        ("first engine", TURNS_BEFORE_RESTART, False),
        ("after the restart", TURNS_AFTER_RESTART, options.hold),
    ):
        console.print(f"Starting the engine ({phase}) ...")
        name = f"demo-{os.getpid()}"
        async with await start_engine(config, name, None) as engine:
            sources = await chat(engine, conversations, num_turns, console)
            sources_by_phase[phase] = sources
            if hold:
                console.print(f"Holding the engine {name}; end it with Ctrl-C.")
                await until_stopped()

    total = sum(sources_by_phase.values(), Counter[str]())
    console.print(source_table({**sources_by_phase, "both": total}))
    record: dict[str, Any] = {
        "name": "demo",
        "unit": "prompt tokens",
        "config": config.model_dump(),
        "value": by_tier(total),
        "by_phase": {phase: dict(sources) for phase, sources in sources_by_phase.items()},
        "num_requests": sum(len(conversation.answers) for conversation in conversations),
        "serve_s": round(time.monotonic() - started_s, 2),
        "passed": _uses_every_tier(total, console),
    }
    if model.is_trained:
        record["talk"] = {each.topic: each.turns() for each in conversations}
    if options.verify:
        await _verify(checkpoint, conversations, record, console)
    record["total_s"] = round(time.monotonic() - started_s, 2)
    return record


def demo_config(options: DemoOptions, checkpoint: Path) -> EngineConfig:
    """Two ranks whose L1 is too small for all conversations, an ample L2, and L3 in files."""
    model = options.model.model
    config = {
        "model": {
            "path": str(checkpoint),
            "device": "cpu",
            "dtype": "float32",
            "max_model_len": model.max_model_len,
        },
        "parallel": {"dp": 2},
        "cache": {
            "page_size": 16,
            "l1": {"num_pages": model.l1_pages},
            "l2": {"bytes_per_node": model.l2_bytes},
            "l3": {"backend": "file", "path": str(options.folder / "l3"), "max_bytes": "1GiB"},
            "load": "always",
            # The second engine reads all from files: an impatient request would compute instead.
            "prefetch": {"strategy": "wait_complete"},
        },
        "scheduler": {"max_running_requests": 8, "chunked_prefill_tokens": 256},
    }
    return load_config(config, options.sections)


def _load_tokenizer(checkpoint: Path) -> Tokenizer:
    tokenizer = load_tokenizer(checkpoint)
    if tokenizer is None:
        raise ConfigError(
            f"{checkpoint} has no tokenizer; the demo chats as text. Choose an empty --folder."
        )
    return tokenizer


def _uses_every_tier(tokens_by_source: Mapping[str, int], console: Console) -> bool:
    tokens_by_tier = by_tier(tokens_by_source)
    unused = [tier for tier in TIERS if not tokens_by_tier[tier]]
    for tier in unused:
        console.print(f"No prompt token came from {tier.upper()}.", style="red")
    return not unused


async def _verify(
    checkpoint: Path,
    conversations: Sequence[Conversation],
    record: dict[str, Any],
    console: Console,
) -> None:
    """Compare with transformers, and enter what came of it into the record."""
    from raydix.runtime.cli.demo_verify import compare_with_transformers

    console.print("Comparing every generated token with transformers ...")
    answers = [(conversation.token_ids, conversation.answers) for conversation in conversations]
    verdict = await asyncio.to_thread(compare_with_transformers, checkpoint, answers)

    console.print(
        f"{verdict.num_tokens} tokens compared: {len(verdict.differences)} differences, "
        f"{verdict.num_near_ties} near ties."
    )
    for line in verdict.differences[:10]:
        console.print(line, style="red")
    record["verify"] = {
        "tokens": verdict.num_tokens,
        "near_ties": verdict.num_near_ties,
        "differences": len(verdict.differences),
    }
    record["passed"] = record["passed"] and not verdict.differences
