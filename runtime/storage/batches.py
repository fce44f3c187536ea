"""How backends answer batches: in parts, each before the deadline, with one status per object."""

from collections.abc import Callable, Sequence

from raydix.runtime.messages.host import ObjectStatus

Move = Callable[[slice], Sequence[ObjectStatus]]
"""Reads or writes one part of a batch; returns a status per object of the part."""


def move_in_parts(
    num_objects: int, part_objects: int, is_late: Callable[[], bool], move: Move
) -> list[ObjectStatus]:
    """Move a batch part by part. Parts that would begin past the deadline are TIMED_OUT."""
    statuses: list[ObjectStatus] = []
    for start in range(0, num_objects, part_objects):
        stop = min(start + part_objects, num_objects)
        if is_late():
            statuses += [ObjectStatus.TIMED_OUT] * (stop - start)
        else:
            statuses += move(slice(start, stop))
    return statuses


def compare_length(stored_bytes: int, page_bytes: int) -> ObjectStatus:
    """OK if a stored object has the length of its page, or what is wrong with it."""
    if stored_bytes == page_bytes:
        return ObjectStatus.OK
    return ObjectStatus.TOO_SHORT if stored_bytes < page_bytes else ObjectStatus.WRONG_LENGTH
