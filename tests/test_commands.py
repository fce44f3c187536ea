"""Transitions alone command three owners or more: who else would is to leave a move to them."""

from pathlib import Path

from tests.commands import Room

ROOT = Path(__file__).resolve().parents[1]
TRANSITIONS = "runtime/scheduler/life/transitions.py"
MOST_OF_TRANSITIONS = 5
"""The functions there that may command three owners or more."""
NOT_OWNERS = ("Chain", "CopyTimes", "Counters", "Explanations", "Timings")
"""Classes that only count or tell, by which nobody decides; a chain only computes its keys late."""

CACHES = ("page_pool", "page_pools", "radix_tree", "recent_prefixes")
"""Modules of the cache that own what the Scheduler commands."""


def read_scheduler() -> dict[str, str]:
    """The text of each module of the Scheduler, and of the caches that it commands."""
    caches = [ROOT / "runtime" / "cache" / f"{name}.py" for name in CACHES]
    paths = [*sorted((ROOT / "runtime" / "scheduler").rglob("*.py")), *caches]
    return {str(path.relative_to(ROOT)): path.read_text() for path in paths}


def test_transitions_alone_command_three_owners() -> None:
    many = [
        (module, function)
        for module, function, owners in Room(read_scheduler(), NOT_OWNERS).commanded()
        if len(owners) >= 3
    ]

    assert [each for each in many if each[0] != TRANSITIONS] == []
    assert 0 < len(many) <= MOST_OF_TRANSITIONS


OWNERS = """
class Queue:
    '''Owns: who waits.'''
    def __init__(self) -> None:
        self._names: list[str] = []
    def add(self, name: str) -> None:
        self._names.append(name)
    def first(self) -> str:
        return self._names[0]

class Pool:
    '''Owns: pages.'''
    def __init__(self) -> None:
        self.num_free = 8
    def take(self) -> None:
        self.num_free -= 1

class Lane:
    '''Owns: a queue and a pool.'''
    def __init__(self) -> None:
        self.queue = Queue()
        self._pool = Pool()
    def start(self) -> None:
        self.queue.add("a")
        self._pool.take()
    @property
    def pool(self) -> Pool:
        return self._pool
"""


def commanded(function: str) -> set[str]:
    """What a function commands beside these owners."""
    found = {name: owners for _, name, owners in Room({"room": OWNERS + function}).commanded()}
    return found["act"]


def test_a_command_is_found_however_its_object_is_reached() -> None:
    assert commanded(
        "def act(lanes: list[Lane], names: dict[str, Lane]) -> None:\n"
        "    for lane in lanes:\n        lane.queue.add('a')\n"
        "    pool = names['a'].pool\n    pool.take()\n"
        "    names.get('b').start()\n"
    ) == {"Queue", "Pool", "Lane"}


def test_a_query_is_no_command() -> None:
    assert commanded("def act(lane: Lane) -> str:\n    return lane.queue.first()\n") == set()


def test_a_private_part_is_its_owners_own() -> None:
    found = {name: owners for _, name, owners in Room({"room": OWNERS}).commanded()}

    assert found["start"] == {"Queue"}


def test_who_calls_commands_of_its_own_parts_is_a_command() -> None:
    assert Room({"room": OWNERS}).classes["Lane"].commands == {"__init__", "start"}


def test_a_class_that_is_left_out_is_no_owner() -> None:
    room = Room({"room": OWNERS + "def act(pool: Pool) -> None:\n    pool.take()\n"}, ["Pool"])

    assert [owners for _, name, owners in room.commanded() if name == "act"] == [set()]
