"""What the descriptors of this process name.

Their number tells nothing of a test: threads of libraries and the collector of garbage close those
of earlier tests at any time.
"""

import os
from collections.abc import Sequence


def descriptors_of(text: str) -> Sequence[str]:
    """Files, sockets and the like that descriptors of this process name, `text` within the name."""
    names = []
    for number in os.listdir("/proc/self/fd"):
        try:
            names.append(os.readlink(f"/proc/self/fd/{number}"))
        except FileNotFoundError:  # closed meanwhile, as the one that lists them
            continue
    return [name for name in names if text in name]
