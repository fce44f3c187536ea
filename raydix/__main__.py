"""`raydix`, or `python -m raydix`: the command line."""

import sys
from typing import NoReturn

from raydix.missing import advice

_STOPPED_STATUS = 130
"""As of a shell's command that Ctrl-C ends; `main` itself says the same."""


def run() -> NoReturn:
    """Import the command line and run it; what keeps it from being imported is one line."""
    try:
        from raydix.runtime.cli.main import main
    except ModuleNotFoundError as error:
        text = advice(error)
        if text is None:
            raise
        sys.exit(text)
    except KeyboardInterrupt:
        sys.exit(_STOPPED_STATUS)
    main()


if __name__ == "__main__":
    run()
