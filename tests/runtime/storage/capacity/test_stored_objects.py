"""Which objects a bounded store gives up, by policy."""

import random

import pytest

from raydix.runtime.config.policies import EvictionPolicy
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
