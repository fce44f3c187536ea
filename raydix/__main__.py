"""`python -m raydix`: the command line."""

from raydix.runtime.cli.main import main

if __name__ == "__main__":
    main()
