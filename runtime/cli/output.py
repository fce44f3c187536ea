"""What verbs print: tables and lines for people, JSON for programs."""

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console
from rich.table import Table

from raydix.errors import ConfigError


@contextlib.contextmanager
def standard_output(as_json: bool) -> Iterator[tuple[Console, TextIO]]:
    """The console for people, and standard output.

    With `--json` the console, Ray and all prints go to stderr, so that JSON is alone on stdout.
    """
    stdout = sys.stdout
    if not as_json:
        yield Console(), stdout
        return
    with contextlib.redirect_stdout(sys.stderr):
        yield Console(stderr=True), stdout


def require_writable(option: str, out: Path) -> None:
    """Raise ConfigError at once, not after an hour, if the file of an option cannot be written."""
    was_there = out.exists()
    with written_as(option, out), out.open("ab"):
        pass
    if not was_there:
        out.unlink()


@contextlib.contextmanager
def written_as(option: str, out: Path) -> Iterator[None]:
    """Raise ConfigError for a file of an option that cannot be written within."""
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"{option} {out} cannot be written: {error.strerror}. Name a file in a folder of yours."
        ) from error


def print_json(value: Any, stream: TextIO | None = None) -> None:
    """Print a value as one line of JSON; None: on standard output."""
    print(json.dumps(value), file=stream, flush=True)


def print_values(values: dict[str, Any], as_json: bool) -> None:
    """Print nested figures: as JSON, or one per line with a dotted name."""
    if as_json:
        print_json(values)
        return

    table = Table(show_header=False, box=None)
    for key, value in _flat(values):
        table.add_row(key, f"{value:,.6g}" if isinstance(value, float) else str(value))
    Console().print(table)


def _flat(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted names and values of nested dicts, sorted."""
    for key, value in sorted(values.items()):
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
