"""Parts of batches, and what a length says of an object."""

from raydix.runtime.messages.host import ObjectStatus
from raydix.runtime.storage.batches import compare_length, move_in_parts

OK, TIMED_OUT = ObjectStatus.OK, ObjectStatus.TIMED_OUT


def test_batch_is_moved_in_parts_of_which_the_last_may_be_short() -> None:
    parts: list[slice] = []

    def move(part: slice) -> list[ObjectStatus]:
        parts.append(part)
        return [OK] * (part.stop - part.start)

    assert move_in_parts(5, 2, lambda: False, move) == [OK] * 5
    assert parts == [slice(0, 2), slice(2, 4), slice(4, 5)]


def test_parts_past_the_deadline_are_timed_out_and_not_begun() -> None:
    lateness = iter([False, True, True])

    statuses = move_in_parts(5, 2, lambda: next(lateness), lambda part: [OK, OK])

    assert statuses == [OK] * 2 + [TIMED_OUT] * 3


def test_length_of_an_object_is_compared_with_its_page() -> None:
    assert compare_length(4, 4) is OK
    assert compare_length(3, 4) is ObjectStatus.TOO_SHORT
    assert compare_length(5, 4) is ObjectStatus.WRONG_LENGTH
