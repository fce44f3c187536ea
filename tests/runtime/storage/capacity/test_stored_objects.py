"""Which objects a bounded store gives up, by policy."""

import random

import pytest

from raydix.ids import SEVERAL_USERS, UserId
from raydix.runtime.config.policies import EvictionPolicy
from raydix.runtime.messages.retention import Retention, RetentionKind
from raydix.runtime.storage.capacity.stored_objects import StoredObjects


def goes(objects: StoredObjects, num_objects: int) -> list[str]:
    """What makes way for so many objects of one byte."""
    num_fitting, victims = objects.reserve([1] * num_objects)
    assert num_fitting == num_objects
    objects.check()
    return list(victims)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (EvictionPolicy.LRU, "bcad"),
        (EvictionPolicy.PRIORITY, "bcad"),
        (EvictionPolicy.FIFO, "abcd"),
        (EvictionPolicy.FILO, "dcba"),
        (EvictionPolicy.MRU, "dacb"),
        (EvictionPolicy.LFU, "bcda"),
        (EvictionPolicy.SLRU, "bcda"),
    ],
)
def test_each_policy_orders_objects(policy: EvictionPolicy, expected: str) -> None:
    objects = StoredObjects(4, policy)
    objects.add(dict.fromkeys("abcd", 1))
    for name in "bcaad":
        objects.touch([name])
    assert objects.names() == tuple(expected)
    assert goes(objects, 4) == list(expected)


@pytest.mark.parametrize("policy", EvictionPolicy)
def test_the_order_holds_through_random_use(policy: EvictionPolicy) -> None:
    draw = random.Random(1)
    objects = StoredObjects(64, policy)
    for number in range(3000):
        name = str(draw.randrange(120))
        action = draw.random()
        if action < 0.5:
            objects.touch([name])
        elif action < 0.6:
            objects.remove(name)
        else:
            [size_bytes] = [draw.randrange(1, 8)]
            expected = [each for each in objects.names() if each != name]
            objects.remove(name)
            _, victims = objects.reserve([size_bytes])
            assert list(victims) == expected[: len(victims)]
            objects.release(size_bytes)
            objects.add({name: size_bytes})
        if number % 100 == 0:
            objects.check()
    assert objects.total_bytes <= 64


def test_former_uses_do_not_pile_up() -> None:
    objects = StoredObjects(None)
    objects.add({"a": 1, "b": 1})
    for _ in range(10_000):
        objects.touch(["a"])
    assert len(objects._order) < 100
    assert objects.names() == ("b", "a")


A, B = UserId(1), UserId(2)
END = Retention(kind=RetentionKind.END)


def keep(seconds: float) -> Retention:
    return Retention(kind=RetentionKind.KEEP, seconds=seconds)


def stored(policy: EvictionPolicy = EvictionPolicy.LRU) -> StoredObjects:
    objects = StoredObjects(6, policy)
    for now_s, name in enumerate("abcdef"):
        objects.advance(float(now_s))
        objects.add({name: 1})
    return objects


@pytest.mark.parametrize("policy", EvictionPolicy)
def test_objects_of_an_ended_session_go_first_in_the_order_named(policy: EvictionPolicy) -> None:
    objects = stored(policy)
    objects.retain(["e", "c", "unknown"], A, END)
    assert goes(objects, 2) == ["e", "c"]


def test_kept_objects_go_last_until_their_time_is_up() -> None:
    objects = stored()
    objects.retain("ab", A, keep(10.0))
    assert objects.names() == ("c", "d", "e", "f", "a", "b")
    objects.advance(20.0)
    objects.touch("cdef")
    assert objects.names() == ("a", "b", "c", "d", "e", "f")


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (EvictionPolicy.LRU, "abcdef"),
        (EvictionPolicy.MRU, "fedcba"),
        (EvictionPolicy.FILO, "fedcba"),
    ],
)
def test_kept_objects_go_as_the_policy_says_once_their_time_is_up(
    policy: EvictionPolicy, expected: str
) -> None:
    objects = StoredObjects(6, policy)
    objects.add(dict.fromkeys("abcdef", 1))
    objects.retain("f", A, keep(10.0))
    assert objects.names()[-1] == "f"
    objects.advance(20.0)
    assert goes(objects, 6) == list(expected)


def test_what_is_to_be_used_again_goes_the_later_the_sooner_that_is() -> None:
    objects = stored()
    objects.retain("ef", A, Retention(kind=RetentionKind.RESUME, seconds=100.0))
    assert goes(objects, 1) == ["e"]
    objects.release(1)
    objects.advance(90.0)
    # 15 s before its use it counts as used 15 s ago, when the others were idle already.
    assert goes(objects, 4) == ["a", "b", "c"]
    assert objects.names() == ("d", "f")


def test_a_hint_ends_with_the_objects_use_and_with_its_user() -> None:
    objects = stored()
    objects.retain("ab", A, keep(50.0))
    objects.retain("c", B, END)
    objects.touch(["c"])
    assert objects.num_hinted == 2
    objects.retain((), A, None)
    assert objects.num_hinted == 0
    assert objects.names() == ("a", "b", "d", "e", "f", "c")
    objects.check()


def test_all_hints_are_forgotten_at_once() -> None:
    objects = stored()
    objects.retain("ab", A, keep(50.0))
    objects.retain("c", B, END)
    objects.retain((), SEVERAL_USERS, None)
    assert objects.num_hinted == 0
    assert objects.names() == tuple("abcdef")


def test_an_object_that_is_written_anew_has_no_hint_of_its_former_self() -> None:
    objects = stored()
    objects.retain("a", A, END)
    objects.remove("a")
    objects.check()
    objects.add({"a": 1})
    assert objects.names() == tuple("bcdefa")
