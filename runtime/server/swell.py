"""What long texts leave behind when they have been answered."""

import os

_MUCH_BYTES = 64 << 20
"""The growth that is worth giving back: less is soon needed again."""


class Swell:
    """Owns: the least memory since some was given back, and how much there was last."""

    def __init__(self, num_bytes: int) -> None:
        self._least = num_bytes
        self._last = num_bytes

    def is_over(self, num_bytes: int) -> bool:
        """Whether memory has grown much, and grows no more; the caller then gives some back."""
        is_growing = num_bytes > self._last
        self._last = num_bytes
        self._least = min(self._least, num_bytes)
        return not is_growing and num_bytes - self._least >= _MUCH_BYTES

    def begin_anew(self, num_bytes: int) -> None:
        """Note how much is left: that is in use, and no reason to give back again."""
        self._least = self._last = num_bytes


def resident_bytes() -> int:
    """The memory that this process occupies."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
