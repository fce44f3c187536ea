"""Numbers of what is under way, as they travel in int32 columns."""

from collections.abc import Container, Iterator

MAX_ID = 2**31 - 1


def next_id(numbers: Iterator[int], in_use: Container[int]) -> int:
    """The next number; after 2^31 - 1 they start over with 1, and pass over those in use."""
    while True:
        number = (next(numbers) - 1) % MAX_ID + 1
        if number not in in_use:
            return number
