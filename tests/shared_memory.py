"""Which files of shared memory stay behind."""

import os
import time

FOLDER = "/dev/shm"
OTHERS_S = 10.0
"""Tests beside this one, in other processes, have files of theirs for less."""


def shared_memory() -> set[str]:
    """The names of the files that there are."""
    return set(os.listdir(FOLDER))


def left_since(before: set[str]) -> set[str]:
    """The files that have come since and stay, once nothing is expected to remove them any more."""
    deadline_s = time.monotonic() + OTHERS_S
    left = shared_memory() - before
    while left and time.monotonic() < deadline_s:
        time.sleep(0.1)
        left &= shared_memory()
    return left
