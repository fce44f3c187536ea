"""`python -m raydix`: the command line."""

import sys

from raydix.missing import advice

if __name__ == "__main__":
    try:
        from raydix.runtime.cli.main import main
    except ModuleNotFoundError as error:
        text = advice(error)
        if text is None:
            raise
        sys.exit(text)
    except KeyboardInterrupt:
        # As of a shell's command: `main` itself says the same.
        sys.exit(130)
    main()
