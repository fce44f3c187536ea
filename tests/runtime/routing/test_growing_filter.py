"""A filter that grows is a set, whatever number of keys come."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from raydix.runtime.routing.growing_filter import GrowingFilter
from raydix.runtime.routing.key_filter import hashed
from tests.runtime.routing.test_key_filter import words

_MOST = 30_000
_runs = st.tuples(st.integers(0, _MOST), st.integers(0, 9_000))


class GrowingMachine(RuleBasedStateMachine):
    """Runs of keys come and go, many more than the first filter takes."""

    def __init__(self) -> None:
        super().__init__()
        self.filter = GrowingFilter()
        self.model: set[int] = set()

    @rule(run=_runs)
    def add(self, run: tuple[int, int]) -> None:
        numbers = range(run[0], run[0] + run[1])
        self.filter.add(words(list(numbers)))
        self.model.update(numbers)

    @rule(run=_runs)
    def remove(self, run: tuple[int, int]) -> None:
        numbers = range(run[0], run[0] + run[1])
        self.filter.remove(words(list(numbers)))
        self.model.difference_update(numbers)

    @rule(run=_runs)
    def look_up(self, run: tuple[int, int]) -> None:
        numbers = range(run[0], run[0] + run[1])
        assert self.filter.has(hashed(words(list(numbers)))).tolist() == [
            number in self.model for number in numbers
        ]

    @invariant()
    def is_counted(self) -> None:
        assert len(self.filter) == len(self.model)
        self.filter.check()


GrowingMachine.TestCase.settings = settings(max_examples=8, stateful_step_count=12, deadline=None)
TestGrowing = GrowingMachine.TestCase


def test_what_was_removed_makes_room() -> None:
    keys = GrowingFilter()
    for start in range(0, 100_000, 4_000):
        keys.add(words(list(range(start, start + 4_000))))
        keys.remove(words(list(range(max(0, start - 4_000), start))))
    assert len(keys) == 4_000
    assert len(keys._filters) == 2
