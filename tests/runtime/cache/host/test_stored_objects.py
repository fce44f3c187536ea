from raydix.ids import L3_SOURCE, BatchId, ConnectionId
from raydix.runtime.cache.host.stored_objects import StoredObjects
from raydix.runtime.cache.host.unanswered import Order, OrderKind
from raydix.runtime.cache.page_key import short_keys
from raydix.runtime.messages.host import ObjectsDone, ObjectStatus
from raydix.runtime.messages.mirror import MirrorCleared, MirrorUpdate

A, B, C = (bytes([number]) * 32 for number in range(3))


def note(objects: StoredObjects, keys: bytes, *statuses: ObjectStatus, group: int = 0) -> None:
    """Storage answers an order."""
    order = Order(kind=OrderKind.READ, sent_s=0.0, group=group, keys=keys, size=len(statuses))
    objects.note(order, ObjectsDone(batch_id=BatchId(0), statuses=bytes(statuses)))


def test_answers_tell_what_is_there_and_what_is_not() -> None:
    objects = StoredObjects(10)
    note(objects, A + B + C, ObjectStatus.OK, ObjectStatus.OK, ObjectStatus.IO_ERROR)
    assert objects.take_news() == [MirrorUpdate(source=L3_SOURCE, ready=short_keys(A + B))]

    note(objects, A + B, ObjectStatus.OK, ObjectStatus.BAD_CHECKSUM)
    note(objects, A + C, ObjectStatus.TIMED_OUT, ObjectStatus.MISSING)

    assert objects.take_news() == [MirrorUpdate(source=L3_SOURCE, dropped=short_keys(B))]
    [told] = objects.introduce(ConnectionId(1))
    assert told.message == MirrorUpdate(source=L3_SOURCE, ready=short_keys(A))


def test_groups_are_told_apart() -> None:
    objects = StoredObjects(10)
    note(objects, A, ObjectStatus.OK)
    note(objects, A, ObjectStatus.OK, group=1)
    assert [news.group for news in objects.take_news() if isinstance(news, MirrorUpdate)] == [0, 1]
    assert {*objects} == {(0, short_keys(A)), (1, short_keys(A))}


def test_those_seen_first_make_way() -> None:
    objects = StoredObjects(2)
    note(objects, A + B, ObjectStatus.OK, ObjectStatus.OK)
    objects.take_news()
    note(objects, C, ObjectStatus.OK)
    assert objects.take_news() == [
        MirrorUpdate(source=L3_SOURCE, ready=short_keys(C), dropped=short_keys(A))
    ]


def test_what_is_out_of_reach_is_told_once_and_before_what_comes_then() -> None:
    objects = StoredObjects(10)
    note(objects, A, ObjectStatus.OK)
    objects.forget_all()
    objects.forget_all()
    note(objects, B, ObjectStatus.OK)
    assert objects.take_news() == [
        MirrorCleared(source=L3_SOURCE),
        MirrorUpdate(source=L3_SOURCE, ready=short_keys(B)),
    ]
    assert not objects.take_news()


def test_the_removal_of_all_leaves_nothing_known() -> None:
    objects = StoredObjects(10)
    note(objects, A, ObjectStatus.OK)
    note(objects, b"", ObjectStatus.IO_ERROR)
    assert not [*objects]


def test_nothing_is_kept_if_nobody_is_told() -> None:
    objects = StoredObjects(0)
    note(objects, A, ObjectStatus.OK)
    assert not [*objects]
    assert not objects.take_news()
