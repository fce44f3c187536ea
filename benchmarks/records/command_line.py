"""The parts of a command line that benchmarks share."""

import argparse
import math
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from benchmarks.records.record import RESULTS
from raydix.runtime.cli.endings import plain_endings


def run(main: Callable[[], int]) -> NoReturn:
    """End the program with the status that `main` returns, or plainly with what it raises."""
    with plain_endings():
        sys.exit(main())


def make_parser(description: str | None) -> argparse.ArgumentParser:
    """A parser that prints a module's docstring as it is written."""
    return argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def count(text: str) -> int:
    """An argument that says how many: at least 1. Raises what argparse tells the user of."""
    return _whole(text, 1)


def seed(text: str) -> int:
    """An argument that seeds random numbers. Raises what argparse tells the user of."""
    return _whole(text, 0)


def _whole(text: str, least: int) -> int:
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least:
        raise argparse.ArgumentTypeError(f"{text} is no whole number of at least {least}")
    return number


def quantity(text: str) -> float:
    """An argument that says how much: at least 0. Raises what argparse tells the user of."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is no number of at least 0")
    return number


def positive(text: str) -> float:
    """A quantity above 0. Raises what argparse tells the user of."""
    number = quantity(text)
    if number == 0:
        raise argparse.ArgumentTypeError(f"{text} is no number above 0")
    return number


def writable_folder(text: str) -> Path:
    """An argument that names a folder, which is made. Raises what argparse tells the user of."""
    folder = Path(text)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # What permissions and mounts allow, only an attempt shows: before hours are measured.
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        raise argparse.ArgumentTypeError(
            f"{text} is no folder for files: {error.strerror}; expected one that can be written"
        ) from None


def add_results(parser: argparse.ArgumentParser, help: str, default: Path | None = RESULTS) -> None:
    """`--results`: the folder for the record. Default None: it is printed and not kept."""
    parser.add_argument("--results", type=writable_folder, default=default, help=help)


def add_commit(parser: argparse.ArgumentParser) -> None:
    """`--commit`: of the code, for a copy of it without a repository."""
    parser.add_argument("--commit", help="of the code, where there is no repository beside it")


def add_keep(parser: argparse.ArgumentParser) -> None:
    """`--keep`: a folder for the record as `arguments.keep`, or None."""
    parser.add_argument(
        "--keep",
        action="store_const",
        const=RESULTS,
        help="write the record to benchmarks/results",
    )
