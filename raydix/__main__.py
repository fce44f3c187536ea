"""`raydix`, or `python -m raydix`: the command line."""

import os
import signal
import sys
from types import FrameType
from typing import NoReturn

from raydix.missing import advice
from raydix.runtime.garbage import nothing_collected

_STOPPED_STATUS = 130
"""The exit status of a command that Ctrl-C ends, as shells have it; `main` itself says the same."""


def run() -> NoReturn:
    """Import the command line and run it; what keeps it from being imported is one line."""
    signal.signal(signal.SIGTERM, _end_as_ctrl_c)
    try:
        with nothing_collected():
            from raydix.runtime.cli.main import main
    except ModuleNotFoundError as error:
        text = advice(error)
        if text is None:
            raise
        sys.exit(text)
    except KeyboardInterrupt:
        sys.exit(_STOPPED_STATUS)
    main()


def _end_as_ctrl_c(number: int, frame: FrameType | None) -> None:
    """Say why, and do what Ctrl-C would do now: whoever sends SIGTERM sees no terminal."""
    # No `print`: this may interrupt one.
    os.write(2, b"SIGTERM: raydix ends\n")
    ctrl_c = signal.getsignal(signal.SIGINT)
    if not callable(ctrl_c):
        # A shell's background process ignores Ctrl-C, but is to end by this.
        raise KeyboardInterrupt
    ctrl_c(signal.SIGINT, frame)


if __name__ == "__main__":
    run()
