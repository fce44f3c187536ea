"""Loading or computing what L2 holds, on a machine whose link and whose steps become slow and well
again."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from raydix.runtime.cache.page_key import KEY_BYTES
from raydix.runtime.config.kv_layout import GroupKind, KvLayout
from raydix.runtime.config.policies import LoadPolicy
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.plan import PageCopies, TransfersDone
from tests.runtime.scheduler.core_driver import BASE, CoreDriver
from tests.runtime.scheduler.l2_driver import evict_from_l1

_PAGES = 64
_PAGE_BYTES = 512
_LINK_BYTES_PER_S = 32e6
_TOKENS_PER_S = 20_000.0
_STEP_S = 0.002
_WINDOW_PAGES = 4
WINDOWED = replace(
    BASE.layout,
    groups=(
        *BASE.layout.groups,
        replace(
            BASE.layout.groups[0], kind=GroupKind.WINDOW, layers=(2,), window=4 * _WINDOW_PAGES
        ),
    ),
)


class Machine(CoreDriver):
    """Loads and steps take the time that their bytes and tokens ask for.

    While all is well, a prompt of `_PAGES` is loaded in 1 ms and computed in 13.
    """

    def __init__(self, layout: KvLayout = BASE.layout, **changes: Any) -> None:
        """L2 holds what sees everything, and of windows the last one before a prompt ends.

        `changes`: of the settings.
        """
        settings: dict[str, Any] = {
            "layout": layout,
            "has_host_memory": True,
            "load": LoadPolicy.AUTO,
            "num_pages": (256,) * len(layout.groups),
            "max_model_len": 1024,
            "prefill_budget_tokens": 256,
            "start_prefill_tokens_per_s": _TOKENS_PER_S,
            "start_load_bytes_per_s": _LINK_BYTES_PER_S,
        }
        super().__init__(**(settings | changes))
        self.slow_link = self.slow_steps = 1.0
        self.num_loaded = 0
        self.prompts = [
            [1000 * index + place for place in range(4 * _PAGES + 1)] for index in (0, 1)
        ]
        for prompt in self.prompts:
            keys = self.keys(prompt)
            for group, reach in enumerate(self.settings.reaches):
                self.fill_group(group, keys if reach is None else keys[-reach * KEY_BYTES :])

    def hit(self, *, every_s: float = 1.0) -> int:
        """Ask for what only L2 holds, and wait for the next turn; returns pages loaded."""
        evict_from_l1(self)
        began_s, before = self.now_s, self.num_loaded
        self.submit(self.prompts[0], max_tokens=1)
        self.work()
        self.now_s = max(self.now_s, began_s + every_s)
        return self.num_loaded - before

    def miss(self, first: int) -> None:
        """Compute a prompt that nobody has."""
        self.submit([first + place for place in range(4 * _PAGES + 1)], max_tokens=1)
        self.work()

    def work(self) -> None:
        """Carry everything out until nothing is left to do."""
        while self.host_turn() or self.plans[0]:
            if not self.plans[0]:
                continue
            plan = self.plans[0][0]
            if len(plan.loads):
                self._load(plan.loads)
            tokens_s = int(plan.row_num_tokens.sum()) / _TOKENS_PER_S
            self.step(seconds=(_STEP_S + tokens_s) * self.slow_steps)

    def _load(self, loads: PageCopies) -> None:
        num_bytes = len(loads) * _PAGE_BYTES
        seconds = num_bytes / _LINK_BYTES_PER_S * self.slow_link
        self.now_s += seconds
        self.num_loaded += len(loads)
        ids = int32_array(dict.fromkeys(loads.transfer_ids.tolist()))
        self._copies[0].clear()
        self.report(
            0, TransfersDone(rank=0, transfer_ids=ids, num_bytes=num_bytes, seconds=seconds)
        )


def _num_until(machine: Machine, is_well: Callable[[int], bool], most: int) -> int:
    """Hits that do not go as they should before two in a row that do."""
    num_wrong, num_well = 0, 0
    while num_well < 2:
        is_wrong = not is_well(machine.hit())
        num_wrong += is_wrong
        num_well = 0 if is_wrong else num_well + 1
        assert num_wrong <= most
    return num_wrong


@pytest.mark.parametrize("slow_link", [5, 20, 50, 200, 1000])
@pytest.mark.parametrize("num_slow", [3, 30])
def test_hits_are_loaded_again_soon_after_a_slow_link_is_well(
    slow_link: float, num_slow: int
) -> None:
    machine = Machine()
    assert [machine.hit() for _ in range(10)] == [_PAGES] * 10
    machine.slow_link = slow_link
    for _ in range(num_slow):
        machine.hit()
    machine.slow_link = 1.0
    _num_until(machine, lambda num_loaded: num_loaded > 0, most=5)


def test_a_prompt_that_can_be_loaded_as_a_whole_alone_is_loaded_again_once_that_is_well() -> None:
    """Only behind all of it there is a window to take it up: no part of it can be tried."""
    machine = Machine(WINDOWED)
    assert [machine.hit() for _ in range(10)] == [_PAGES + _WINDOW_PAGES] * 10
    machine.slow_link = 200.0
    for _ in range(4):
        machine.hit()
    machine.slow_link = 1.0

    # One percent of so many seconds pays for the whole.
    _num_until(machine, lambda num_loaded: num_loaded > 0, most=20)


@pytest.mark.parametrize("slow_link", [1, 10, 100])
@pytest.mark.parametrize("every_s", [0.1, 4.0])
def test_trials_are_weighed_for_hits_that_begin_in_l1(slow_link: float, every_s: float) -> None:
    machine = Machine()
    machine.slow_link = slow_link
    for _ in range(20):
        evict_from_l1(machine)
        began_s = machine.now_s
        machine.submit(machine.prompts[0][:33], max_tokens=1)
        machine.work()
        machine.submit(machine.prompts[0], max_tokens=1)
        machine.work()
        machine.now_s = max(machine.now_s, began_s + every_s)
    assert machine.num_loaded > 0


def test_slow_loads_beside_a_trial_of_computing_do_not_put_off_trials_of_loads() -> None:
    machine = Machine()
    # Computing is dearer, and so dear that it is tried with some of the pages.
    machine.slow_steps, machine.slow_link = 20.0, 150.0
    for index in range(2, 6):
        machine.miss(1000 * index)
        machine.hit()
    for _ in range(4):
        machine.hit()

    machine.slow_link = 1500.0
    assert 0 < min(machine.hit() for _ in range(3)) < _PAGES
    machine.slow_link = 150.0
    _num_until(machine, lambda num_loaded: num_loaded > 0, most=5)


def test_trials_of_computing_leave_hits_by_which_loads_are_seen_to_be_well() -> None:
    machine = Machine()
    # Computing is a little dearer: there is always time for a trial with all pages.
    machine.slow_link = 12.0
    for _ in range(6):
        machine.hit(every_s=5.0)
    machine.slow_link = 1.0

    num_loaded = [machine.hit(every_s=5.0) for _ in range(8)]

    assert num_loaded.count(0) <= 5


def test_a_load_of_a_later_request_of_the_same_name_is_no_cost_of_a_trial() -> None:
    machine = Machine()
    # Loads were slow, and are tried; who tries goes before its load is there.
    machine.slow_link = 50.0
    for _ in range(4):
        machine.hit()
    machine.now_s += 4.0
    evict_from_l1(machine)
    machine.submit(machine.prompts[0], max_tokens=1, name="same")
    assert machine.core._source.leases, "it is a trial"
    tried_s = machine.now_s
    machine.abort("same")
    machine.work()
    # What is known of loads is forgotten, so the next one of that name is loaded as a matter of
    # course, over a link that is held up.
    machine.now_s += 3600.0
    machine.miss(50_000)
    machine.slow_link = 5000.0
    evict_from_l1(machine)
    del machine.answers["same"]
    machine.submit(machine.prompts[0], max_tokens=1, name="same")
    assert machine.core._source.leases
    machine.work()

    since_s = machine.now_s - tried_s
    affordable_s = machine.core._trials.affordable_s(machine.now_s)
    assert affordable_s == pytest.approx(0.01 * since_s, abs=0.01)


def test_few_pages_that_take_longer_to_compute_than_all_to_load_are_not_tried_at_every_hit() -> (
    None
):
    machine = Machine()
    # Computing was quicker than loading is now, and no more than a few pages are ever paid for.
    machine.slow_link, machine.slow_steps = 10.0, 20.0
    for first in (50_000, 51_000, 52_000):
        machine.miss(first)

    num_loaded = [machine.hit(every_s=4.0) for _ in range(8)]

    assert num_loaded.count(_PAGES) >= 4


@pytest.mark.parametrize("slow_link", [20, 50, 200])
def test_a_link_that_stays_slow_costs_one_percent_of_the_time(slow_link: float) -> None:
    machine = Machine()
    machine.hit()
    machine.slow_link = slow_link
    for _ in range(10):
        machine.hit()
    began_s, before = machine.now_s, machine.num_loaded
    for _ in range(300):
        machine.hit(every_s=0.3)

    page_s = _PAGE_BYTES / _LINK_BYTES_PER_S * slow_link - 4 / _TOKENS_PER_S
    cost_s = (machine.num_loaded - before) * page_s
    assert cost_s <= 0.01 * (machine.now_s - began_s + 5.0)
    assert cost_s >= 0.002 * (machine.now_s - began_s), "it is tried"


@pytest.mark.parametrize("slow_steps", [20.0, 100.0])
@pytest.mark.parametrize("budget_tokens", [64, 256, 512])
def test_steps_that_stay_slow_cost_one_percent_of_the_time(
    slow_steps: float, budget_tokens: int
) -> None:
    # It was taken for a much faster machine, and all prompts are of one size.
    fast = 50 * _TOKENS_PER_S
    machine = Machine(start_prefill_tokens_per_s=fast, prefill_budget_tokens=budget_tokens)
    machine.slow_steps = slow_steps
    for first in (50_000, 51_000, 52_000):
        machine.miss(first)
    machine.hit()
    began_s, num_hits, before = machine.now_s, 300, machine.num_loaded
    for _ in range(num_hits):
        machine.hit(every_s=0.3)

    num_computed = num_hits * _PAGES - (machine.num_loaded - before)
    cost_s = num_computed * 4 / _TOKENS_PER_S * slow_steps
    assert cost_s <= 0.01 * (machine.now_s - began_s + 5.0)


def test_hits_are_computed_again_soon_after_steps_were_held_up() -> None:
    machine = Machine()
    # It would be quicker to compute everything.
    machine.slow_link = 30.0
    for index in range(2, 6):
        machine.miss(1000 * index)
        machine.hit()
    assert machine.hit() == 0

    machine.slow_steps = 100.0
    for index in range(6, 9):
        machine.miss(1000 * index)
    machine.slow_steps = 1.0
    assert machine.hit() == _PAGES
    _num_until(machine, lambda num_loaded: num_loaded < _PAGES, most=5)


def test_a_machine_that_is_well_tries_nothing() -> None:
    machine = Machine()
    assert [machine.hit() for _ in range(100)] == [_PAGES] * 100
