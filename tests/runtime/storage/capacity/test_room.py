"""The room of a bounded store: what is reserved comes back, what cannot be deleted counts."""

import random
from collections.abc import Sequence

import pytest

from raydix.runtime.config.policies import EvictionPolicy
from raydix.runtime.storage.capacity.room import Reservation, Room


class Store:
    """Removes what the room evicts, but for what is stuck."""

    def __init__(self, max_bytes: int) -> None:
        self.stuck: set[str] = set()
        self.evicted: list[str] = []
        self.error: Exception | None = None
        self.room = Room(max_bytes, self.remove)

    def remove(self, names: Sequence[str]) -> list[str]:
        if self.error is not None:
            raise self.error
        self.evicted += [name for name in names if name not in self.stuck]
        return [name for name in names if name in self.stuck]

    def write(self, *names: str) -> int:
        """Write objects of one byte; for how many there was room."""
        with self.room.reserve([1] * len(names)) as reservation:
            fitting = names[: len(reservation.sizes)]
            self.room.settle(reservation, dict.fromkeys(fitting, 1))
        return len(fitting)


def test_room_that_is_not_settled_is_given_back() -> None:
    store = Store(4)
    with store.room.reserve([1, 1, 1]) as reservation:
        store.room.settle(reservation, {"a": 1})
    with pytest.raises(ValueError, match="out of order"), store.room.reserve([3]):
        raise ValueError("out of order")
    assert store.write("b", "c", "d") == 3
    assert store.evicted == []
    assert store.room.names() == ("a", "b", "c", "d")
    store.room.check()


def test_object_that_cannot_be_deleted_counts_and_others_are_tried_before_it() -> None:
    store = Store(4)
    store.write("a", "b", "c", "d")
    store.stuck = {"a"}
    assert store.write("e", "f") == 1, "a is still there"
    assert store.evicted == ["b"]
    assert store.room.names() == ("c", "d", "e", "a")
    assert store.write("g", "h") == 2
    assert store.evicted == ["b", "c", "d"]
    assert store.room.figures()["evictions_failed"] == 1
    store.room.check()


@pytest.mark.parametrize("policy", sorted(EvictionPolicy))
def test_one_object_that_cannot_be_deleted_stops_no_writes_under_any_policy(
    policy: EvictionPolicy,
) -> None:
    room = Room(10, lambda names: [name for name in names if name == "stuck"], policy)
    room.add({"stuck": 1})
    room.add({f"old {number}": 1 for number in range(8)})
    room.touch([f"old {number}" for number in range(8)])
    room.add({"last": 1})
    num_written = 0
    for number in range(100):
        with room.reserve([1]) as reservation:
            written = {f"new {number}": 1} if reservation.sizes else {}
            room.settle(reservation, written)
        num_written += len(written)
        room.check()
    assert num_written >= 90
    assert "stuck" in room.names()


@pytest.mark.parametrize("policy", sorted(EvictionPolicy))
def test_what_was_stuck_goes_once_it_can(policy: EvictionPolicy) -> None:
    stuck = {"a", "b"}
    room = Room(2, lambda names: [name for name in names if name in stuck], policy)
    room.add({"a": 1, "b": 1})
    with room.reserve([2]) as reservation:
        assert not reservation.sizes
    stuck.clear()
    with room.reserve([2]) as reservation:
        assert reservation.sizes == [2]
    assert len(room) == 0
    room.check()


def test_a_stuck_object_that_is_used_has_its_place_again() -> None:
    stuck = {"a"}
    room = Room(3, lambda names: [name for name in names if name in stuck])
    room.add({"a": 1, "b": 1, "c": 1})
    with room.reserve([1]):
        pass
    assert room.names() == ("b", "c", "a")
    room.touch(["a", "b", "c"])
    assert room.names() == ("a", "b", "c")
    room.forget(["a"])
    room.check()


def test_store_that_cannot_delete_at_all_refuses_and_recovers_in_full() -> None:
    store = Store(64)
    names = [str(number) for number in range(64)]
    store.write(*names)

    store.stuck = set(names)
    for turn in range(100):
        assert store.write(f"new {turn}") == 0
        assert not store.room.trim(), "there is no use in going on at once"
    assert len(store.room) == 64

    store.stuck.clear()
    assert store.write(*(f"later {number}" for number in range(64))) == 64
    while store.room.trim():
        pass
    assert len(store.room) == 60
    store.room.check()


def test_deletion_that_raises_keeps_all_on_record_and_reserves_nothing() -> None:
    store = Store(2)
    store.write("a", "b")
    store.error = RuntimeError("library")
    with pytest.raises(RuntimeError, match="library"):
        store.write("c")
    with pytest.raises(RuntimeError, match="library"):
        store.room.trim()
    store.error = None
    assert set(store.room.names()) == {"a", "b"}
    assert store.write("c", "d") == 2
    store.room.check()


def test_random_failures_never_take_more_than_the_bound_nor_leak_room() -> None:
    rng = random.Random(7)
    store = Store(50)
    for turn in range(2000):
        store.stuck = {name for name in store.room.names() if rng.random() < 0.3}
        sizes = [rng.randint(1, 9) for _ in range(rng.randint(1, 8))]
        with store.room.reserve(sizes) as reservation:
            written = {
                f"{turn} {index}": size
                for index, size in enumerate(reservation.sizes)
                if rng.random() < 0.8
            }
            store.room.settle(reservation, written)
        store.room.check()
        assert store.room.figures()["bytes"] <= 50

    store.stuck.clear()
    with store.room.reserve([50]) as reservation:
        assert reservation.sizes == [50]


def write_in_parts(store: Store, sizes: Sequence[int]) -> tuple[list[Sequence[int]], list[int]]:
    """The parts in which objects of these sizes are written, and those that are refused."""
    parts: list[Sequence[int]] = []

    def write(part: Sequence[int], reservation: Reservation) -> None:
        parts.append(part)
        store.room.settle(reservation, {f"{len(parts)} {size}": size for size in part})

    refused = store.room.write_in_parts(sizes, lambda size: size, write)
    store.room.check()
    return parts, refused


def test_objects_that_do_not_fit_at_once_are_written_in_parts() -> None:
    store = Store(10)

    assert write_in_parts(store, [4, 5, 6]) == ([[4, 5], [6]], [])
    assert store.evicted == ["1 4", "1 5"]


def test_object_larger_than_the_store_is_refused_alone() -> None:
    assert write_in_parts(Store(10), [4, 11, 5]) == ([[4], [5]], [11])


def test_nothing_that_needs_an_eviction_is_written_while_none_can_be_deleted() -> None:
    store = Store(4)
    store.write("a", "b")
    store.stuck = {"a", "b"}

    assert write_in_parts(store, [2, 1, 1]) == ([[2]], [1, 1])
