"""The prefix that most waiting requests begin with goes first, and nobody waits for ever for it."""

import random

from raydix.ids import PageKey
from raydix.runtime.scheduler.queue.prefix_turns import PrefixTurns
from raydix.runtime.scheduler.request.request import RequestState
from raydix.runtime.scheduler.request.request_order import OrderKey
from tests.runtime.scheduler.queue.test_waiting import request

_Entry = tuple[RequestState, OrderKey, tuple[PageKey, ...]]


def place(request: RequestState, level: int = 0) -> OrderKey:
    """A place in the order of arrival within a level."""
    return OrderKey(level, 0, 0, request.arrival_s, request.serial)


def keys_of(path: str) -> tuple[PageKey, ...]:
    """Chained keys: each names all that comes before it."""
    return tuple(PageKey(path[: end + 1].encode()) for end in range(len(path)))


def order_of(*paths: str) -> list[str]:
    """The paths in the order of their turns, come one after the other."""
    turns, path_of = PrefixTurns(), {}
    for serial, path in enumerate(paths):
        new = request(serial, arrival_s=float(serial))
        path_of[new.request_id] = path
        turns.put(new, place(new), keys_of(path))
    order = []
    while (first := turns.first()) is not None:
        order.append(path_of[first.request_id])
        turns.discard(first.request_id)
    return order


def test_the_heaviest_prefix_goes_first_and_within_it_the_heaviest_again() -> None:
    assert order_of("x", "x", "ab", "ac", "ac") == ["ac", "x", "ab", "x", "ac"]


def test_those_that_share_nothing_go_by_arrival() -> None:
    assert order_of("c", "", "a", "b") == ["c", "", "a", "b"]


def test_a_level_goes_before_every_prefix() -> None:
    turns = PrefixTurns()
    patient = request(1)
    turns.put(patient, place(patient, level=0), keys_of("z"))
    for serial in range(2, 9):
        popular = request(serial)
        turns.put(popular, place(popular, level=1), keys_of("a"))
    assert turns.first() is patient


def test_random_use_agrees_with_counting_all_at_every_turn() -> None:
    draw = random.Random(0)
    turns, present = PrefixTurns(), dict[int, _Entry]()
    for step in range(3000):
        action = draw.choice(["put", "put", "move", "discard"])
        serial = draw.choice(list(present)) if present else -1
        if action == "put" or (action == "move" and present):
            serial = step if action == "put" else serial
            new = present[serial][0] if serial in present else request(serial)
            path = "".join(draw.choice("ab") for _ in range(draw.randrange(5)))
            present[serial] = new, place(new, draw.randrange(2)), keys_of(path)
            turns.put(*present[serial])
        elif action == "discard" and present:
            turns.discard(present.pop(serial)[0].request_id)
        assert len(turns) == len(present)
        assert turns.first() is _first_by_counting(list(present.values()))


def _first_by_counting(entries: list[_Entry]) -> RequestState | None:
    if not entries:
        return None
    level = min(key.level for _, key, _ in entries)
    left, depth = [entry for entry in entries if entry[1].level == level], 0
    while True:
        groups: dict[PageKey | None, list[_Entry]] = {}
        for entry in left:
            name = entry[2][depth] if depth < len(entry[2]) else None
            groups.setdefault(name, []).append(entry)
        name = min(groups, key=lambda name: (-len(groups[name]), min(e[1] for e in groups[name])))
        left, depth = groups[name], depth + 1
        if name is None:
            return min(left, key=lambda entry: entry[1])[0]
