"""Several engines on one L2: what one brings the others find, and no death of one hurts another."""

from dataclasses import replace
from typing import Any

import pytest

from raydix.ids import ConnectionId, SchedulerName
from raydix.runtime.cache.host import events as host_events
from raydix.runtime.cache.host.core import HostMemoryCore
from raydix.runtime.cache.host.quarantine import Quarantine
from raydix.runtime.cache.host.scheduler_side import SchedulerSide
from raydix.runtime.cache.host.schedulers import Schedulers
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.client import SubmitRequest
from raydix.runtime.messages.host import CopiesDrained
from raydix.runtime.messages.plan import DeviceSampling
from tests.simulation.checks import check_idle
from tests.simulation.client_links import Answer
from tests.simulation.cluster import Cluster
from tests.simulation.faults import Faults
from tests.simulation.node import Node
from tests.simulation.shared_l2 import draw_shared_workload
from tests.simulation.test_mutants import SMALL_L1, Case, find
from tests.simulation.workload import BASE_SETTINGS, Workload, run_workload
from tests.simulation.world import World

_NUM_SEEDS = 60
_SEEDS_PER_TEST = 3

DEATHS = Workload(
    seed=0,
    settings=replace(SMALL_L1, num_lanes=1),
    num_engines=2,
    l2_pages=40,
    storage=None,
    faults=Faults(copy_s=0.3, link_delay_s=0.0005, reconnect_s=0.5),
    num_requests=40,
    span_s=3.0,
    num_prefixes=8,
    prefix_tokens=(24, 40),
    max_output_tokens=8,
    salt_fraction=0.0,
    abort_fraction=0.0,
    num_scheduler_kills=6,
)
"""Schedulers die while their ranks copy, and the other engine soon wants the host pages."""


@pytest.mark.part
@pytest.mark.parametrize("first_seed", range(0, _NUM_SEEDS, _SEEDS_PER_TEST))
def test_engines_that_share_an_l2_end_exactly(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + _SEEDS_PER_TEST):
        run_workload(draw_shared_workload(seed))


def test_an_engine_finds_in_l2_what_another_computed() -> None:
    node = Node(World(0, Faults()), BASE_SETTINGS, l2_pages=64, storage=None)
    first, second = Cluster(node), Cluster(node)
    prompt = [token % 7 for token in range(41)]

    _ask(first, prompt)
    sources = _ask(second, prompt)

    assert sources == {"l2": 40, "computed:partial_page": 1}
    check_idle(node)


def test_an_engine_that_comes_later_finds_what_was_there_before_it() -> None:
    node = Node(World(0, Faults()), BASE_SETTINGS, l2_pages=64, storage=None)
    prompt = [token % 7 for token in range(41)]
    first = Cluster(node)
    _ask(first, prompt)

    late = Cluster(node)
    first.run_until(first.now_s + 1.0)

    assert _ask(late, prompt) == {"l2": 40, "computed:partial_page": 1}
    check_idle(node)


def test_an_engine_that_ends_leaves_its_pages_and_nothing_else() -> None:
    node = Node(World(0, Faults(copy_s=0.3)), BASE_SETTINGS, l2_pages=64, storage=None)
    prompt = [token % 7 for token in range(41)]
    first, second = Cluster(node), Cluster(node)
    _ask(first, prompt)
    _submit(first, prompt[::-1])
    first.run(lambda: first.core.stats()["transfers_in_flight"] > 0)

    first.end()
    second.run_until(second.now_s + 30.0)

    assert _ask(second, prompt) == {"l2": 40, "computed:partial_page": 1}
    assert _ask(Cluster(node), prompt) == {"l2": 40, "computed:partial_page": 1}
    check_idle(node)


def test_an_l2_that_is_taken_back_waits_for_no_engine_that_has_ended() -> None:
    node = Node(World(0, Faults()), BASE_SETTINGS, l2_pages=64, storage=None)
    first, second = Cluster(node), Cluster(node)
    first.end()
    assert node.host_memory is not None
    node.host_memory.kill()

    second.run_until(second.now_s + 30.0)

    assert second.core.stats()["l2_granted_pages"] > 0
    check_idle(node)


def _ask(engine: Cluster, prompt: list[int]) -> dict[str, int]:
    """Send a prompt, and wait for the answer and its backup; returns the prompt's sources."""
    answer = _submit(engine, prompt)
    engine.run(lambda: answer.ending is not None)
    engine.run_until(engine.now_s + 2.0)
    assert answer.ending == "length"
    assert answer.sources is not None
    return answer.sources


def _submit(engine: Cluster, prompt: list[int]) -> Answer:
    message = SubmitRequest(
        asking=engine.client("client").next_asking(),
        request_id="a",  # type: ignore[arg-type]
        token_ids=int32_array(prompt),
        sampling=DeviceSampling(seed=0),
        max_tokens=1,
    )
    return engine.submit(message)


def grants_of_the_dead_are_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was granted over a connection that is gone is free at once, whoever copies into it."""

    def free(self: Quarantine, holders: Any, filling: Any, pinned: Any) -> None:
        for page_id in filling:
            self._index.quarantine(page_id)
            self._index.free(page_id)
        self._index.unpin(pinned)

    lose = HostMemoryCore._lose_scheduler

    def lose_freely(self: HostMemoryCore, side: SchedulerSide) -> None:
        with monkeypatch.context() as at_loss:
            at_loss.setattr(Quarantine, "hold", free)
            lose(self, side)

    monkeypatch.setattr(HostMemoryCore, "_lose_scheduler", lose_freely)


def ended_before_its_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """HostMemory is told that an engine has ended before its processes have exited."""
    end = Cluster.end

    def end_at_once(self: Cluster) -> None:
        end(self)
        self.node.to_host(host_events.SchedulerEnded(self.name))

    monkeypatch.setattr(Cluster, "end", end_at_once)


def anyone_drains_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once one Scheduler's copies are drained, those of all others count as drained, too."""
    take_message = HostMemoryCore._take_message

    def take(self: HostMemoryCore, side: SchedulerSide, message: Any) -> None:
        take_message(self, side, message)
        if isinstance(message, CopiesDrained):
            for holder in [each for each in self._quarantine._held if isinstance(each, str)]:
                self._quarantine.let_go(SchedulerName(holder))

    monkeypatch.setattr(HostMemoryCore, "_take_message", take)


def keys_count_as_told_to_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """What L2 holds is told to the first Scheduler, and counts as told to those that come later."""
    attach = Schedulers.attach

    def attach_untold(self: Schedulers, connection: ConnectionId, name: SchedulerName) -> None:
        others = list(self.attached)
        attach(self, connection, name)
        if others:
            self.of(connection).mirror._walked_to = None

    monkeypatch.setattr(Schedulers, "attach", attach_untold)


def a_former_user_is_not_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    """The arena that is taken back does not name one of those that have used it."""
    init = Schedulers.__init__

    def forget_one(self: Schedulers, *given: Any, **named: Any) -> None:
        init(self, *given, **named)
        if self._awaited:
            name = max(self._awaited)
            self._awaited.discard(name)
            self._known.discard(name)

    monkeypatch.setattr(Schedulers, "__init__", forget_one)


ENDS = replace(
    DEATHS,
    num_scheduler_kills=0,
    num_engine_ends=1,
    faults=replace(DEATHS.faults, linger_s=2.0, last_copy_s=1.0),
)
"""An engine ends while its ranks copy, and they go on for a while."""
CASES = [
    Case(mutant=grants_of_the_dead_are_free, workload=DEATHS),
    Case(mutant=ended_before_its_processes, workload=ENDS),
    Case(
        mutant=a_former_user_is_not_awaited,
        workload=replace(DEATHS, num_scheduler_kills=0, num_host_kills=6),
    ),
    Case(mutant=anyone_drains_for_all, workload=replace(DEATHS, seed=4)),
    Case(
        mutant=keys_count_as_told_to_all, workload=replace(DEATHS, l2_pages=1000, num_requests=12)
    ),
]


@pytest.mark.part
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.mutant.__name__)
def test_mutant_is_found(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    find(case, monkeypatch)
