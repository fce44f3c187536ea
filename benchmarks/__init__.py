"""Scripts that measure.

While one of them is still being imported, which takes seconds, Ctrl-C ends it at once and without
a traceback. From `command_line.run` on it is a KeyboardInterrupt.
"""

import signal
import sys

# So that says `python -m benchmarks.NAME` until it has found the script.
_IS_STARTING = sys.argv[0] == "-m"

# What a shell runs in the background ignores Ctrl-C, and goes on to.
if _IS_STARTING and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
