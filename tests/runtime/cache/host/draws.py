"""What the state machine of the HostMemory core draws, how it begins, and how it must end."""

from dataclasses import replace

from hypothesis import strategies as st

from raydix.runtime.cache.host.events import ProcessExited, Tick
from raydix.runtime.cache.host.window_ends import PrefixRule
from raydix.runtime.messages.host import ObjectStatus
from tests.runtime.cache.host.host_script import HostScript
from tests.runtime.cache.host.host_values import STORAGE, make_key
from tests.runtime.cache.host.host_world import Memory, Name

SETTINGS = replace(STORAGE, batch_pages=3, put_off_s=2.0, breaker_failures=3, max_write_attempts=2)
GROUPS = st.integers(0, 1)
RULES = st.sampled_from(
    [
        PrefixRule(),
        PrefixRule(reaches=(None, None)),
        PrefixRule(reaches=(None, 2), checkpoint_pages=3),
        PrefixRule(reaches=(2,), checkpoint_pages=3),
        PrefixRule(reaches=(1, 3), checkpoint_pages=100),
    ]
)
NAMES = st.integers(0, 11)
STARTS = st.sampled_from([0, 0, 0, 1, 3])
CHAINS = st.builds(
    lambda first, length: list(range(first, first + length)),
    st.sampled_from([0, 1, 2, 3, 8, 9]),
    st.integers(0, 8),
)
STATUSES = st.sampled_from(
    [ObjectStatus.OK] * 4 + [ObjectStatus.IO_ERROR, ObjectStatus.FULL, ObjectStatus.TIMED_OUT]
)

_FULL_NAMES = range(8)
_WINDOW_NAMES = (0, 2, 3, 5, 6)
_LEFT_OVERS = ("leases", "lookups", "pages_reading", "pages_staged", "pages_quarantined")
"""Figures that are 0 in the end."""


def make_host(rule: PrefixRule) -> HostScript:
    """A small L2; pages of a second group take twice as much room."""
    page_sizes, num_slabs = ((1,), 1) if len(rule.reaches) == 1 else ((1, 2), 6)
    return HostScript(
        24, SETTINGS, num_slabs=num_slabs, page_sizes=page_sizes, rule=rule, piece_pages=2
    )


def first_objects(rule: PrefixRule) -> set[Name]:
    """What L3 holds at first: of a window only what belongs to some checkpoints."""
    return {
        (group, make_key(name))
        for group, reach in enumerate(rule.reaches)
        for name in (_FULL_NAMES if reach is None else _WINDOW_NAMES)
    }


def assert_nothing_is_left(host: HostScript) -> None:
    """Everything has ended: nobody holds a page but the Scheduler its grants."""
    stats = host.core.stats()
    assert all(stats[name] == 0 for name in _LEFT_OVERS), stats
    assert stats["l3_writes_pending"] == 0
    assert stats["pages_filling"] == stats["pages_granted"]
    granted = [pairs for end in host.ends.values() for pairs in end.granted_of]
    assert stats["pages_granted"] == sum(map(len, granted))
    assert host.core._index.num_readers == 0


def end_all(host: HostScript, memory: Memory) -> None:
    """Every process exits, L3 answers everything, and all that waits for time gets it."""
    for pid in memory.pids:
        memory.end(pid)
        host.tell(ProcessExited(pid))
    for _ in range(3):
        while host.orders or host.tick_while_due():
            host.answer_all()
        host.now_s += 100.0
        host.tell(Tick())
    host.tick_while_due()
