"""`raydix logs`: the log of a service, of all its engines together, or of one engine."""

import asyncio
import sys
from typing import Annotated, Any

import typer

from raydix.errors import EngineDead
from raydix.runtime.actors.log_format import FormatLine, format_json, format_text
from raydix.runtime.cli.options import AsJson
from raydix.runtime.messages.log_line import LogLine

_RETRY_S = 0.5
_MAX_FAILURES = 60
"""The number of failures in a row after which an engine that keeps its name is given up."""
_NEXT_S = 5.0
"""The time for a later version of a service to take the name over."""

Target = Annotated[str, typer.Argument(help="A service or an engine of this host.")]
Follow = Annotated[
    bool, typer.Option("--follow", "-f", help="Go on with each line as it comes, until it ends.")
]


def logs(name: Target, follow: Follow = False, as_json: AsJson = False) -> None:
    """Show the latest lines of a service or of an engine, from whoever started it.

    Lines of a service's engines name the engine and the address of its node.
    """
    asyncio.run(_show(name, follow, format_json if as_json else format_text))


async def _show(name: str, follow: bool, format_line: FormatLine) -> None:
    from raydix.runtime.actors.bootstrap.control_client import call_supervisor
    from raydix.runtime.actors.engine_record import find_record, running_names

    record = find_record(name)
    if record is None:
        known = ", ".join(running_names()) or "none"
        raise EngineDead(
            f"{name} is neither a service nor an engine of this host. There are: {known}."
        )

    method = "next_lines" if follow else "lines_since"
    number, num_failures = 0, 0
    while True:
        try:
            answer = await call_supervisor(name, record, method, number)
        except EngineDead:
            later, num_failures = await _later_record(name), num_failures + 1
            if not follow or num_failures == _MAX_FAILURES:
                raise
            if later is None:
                print(f"{name} has ended", file=sys.stderr)
                return
            if later != record:
                record, number = later, 0
            continue
        num_failures = 0
        _print(answer, number, format_line)
        number = answer["first"] + len(answer["lines"])
        if not follow and not answer["lines"]:
            return


async def _later_record(name: str) -> Any:
    """How whoever has the name now is reached; None: nobody takes it for a while."""
    from raydix.runtime.actors.engine_record import find_record

    for _ in range(round(_NEXT_S / _RETRY_S)):
        await asyncio.sleep(_RETRY_S)
        if (record := find_record(name)) is not None:
            return record
    return None


def _print(answer: dict[str, Any], number: int, format_line: FormatLine) -> None:
    if answer["first"] > number > 0:
        num_lost = answer["first"] - number
        print(f"{num_lost} lines are gone: they came faster than they were taken", file=sys.stderr)
    for values in answer["lines"]:
        print(format_line(LogLine.from_values(values)))
    sys.stdout.flush()
