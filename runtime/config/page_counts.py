"""How many pages go together where bytes are what counts. A pure function.

A page of keys and values has some hundred KiB or a few MiB, a state up to hundreds of MiB.
"""


def pages_within(num_bytes: int, page_bytes: int, most: int) -> int:
    """The pages of so many bytes that `num_bytes` hold: at least one, and at most `most`."""
    return max(1, min(most, num_bytes // page_bytes))
