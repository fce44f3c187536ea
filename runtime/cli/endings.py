"""How what goes wrong ends a program: in one line, where there is no more to say."""

import errno
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from raydix.errors import RaydixError
from raydix.missing import advice
from raydix.runtime.cli.stop_signal import STOPPED_STATUS, StoppedWhileStarting


@contextmanager
def plain_endings() -> Iterator[None]:
    """An error that Raydix raises on purpose is one line on stderr and exit status 1.

    Ctrl-C is exit status 130 without a word. Bugs keep their traceback.
    """
    try:
        yield
    except RaydixError as error:
        _fail(error)
    except ExceptionGroup as group:
        # A group of tasks wraps what one of them raised. If anything else is in it, that is a bug.
        expected, others = group.split(RaydixError)
        if expected is None or others is not None:
            raise
        _fail(_first_in(expected))
    except ModuleNotFoundError as error:
        # Most packages are imported by the verb that needs them.
        text = advice(error)
        if text is None:
            raise
        sys.exit(text)
    except OSError as error:
        # Of a full disk, perhaps that on which our output lands, there is no more to say.
        if error.errno != errno.ENOSPC:
            raise
        _fail(error)
    except (KeyboardInterrupt, StoppedWhileStarting):
        sys.exit(STOPPED_STATUS)


def _first_in(group: BaseExceptionGroup[RaydixError]) -> BaseException:
    first: BaseException = group
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    return first


def _fail(error: BaseException) -> NoReturn:
    print(f"{type(error).__name__}: {' '.join(str(error).split())}", file=sys.stderr)
    sys.exit(1)
