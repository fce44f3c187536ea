"""Tests of the tests: random workloads find bugs about names, links and waiting that recur."""

from dataclasses import replace
from typing import Any

import pytest

from raydix.ids import ConnectionId, LeaseId, RequestId
from raydix.runtime.scheduler import events
from raydix.runtime.scheduler.core import SchedulerCore
from raydix.runtime.scheduler.late_ranks import LateRanks
from raydix.runtime.scheduler.life.requests import Requests
from raydix.runtime.scheduler.newest_links import NewestLinks
from raydix.runtime.scheduler.queue.waiting import WaitingQueue
from raydix.runtime.scheduler.rank_events import RankEvents
from raydix.runtime.scheduler.request.request import RequestState
from raydix.runtime.scheduler.sources.kv_source import KvSource
from raydix.runtime.scheduler.sources.lease_wanted import LeaseWanted
from raydix.runtime.scheduler.sources.lookups import Lookups
from tests.simulation.faults import Faults
from tests.simulation.host_process import HostProcess
from tests.simulation.scheduler_process import SchedulerProcess
from tests.simulation.test_mutants import FROM_STORAGE, SMALL_L1, Case, find
from tests.simulation.workload import BASE_SETTINGS, Workload

FLAPS = Workload(
    seed=0,
    settings=BASE_SETTINGS,
    faults=Faults(copy_s=0.1, lag_fraction=0.5),
    num_requests=48,
    num_flushes=2,
)


def leases_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease's answer belongs to whichever request has the asker's name and is in as many runs."""
    take_lease, add = KvSource.take_lease, Requests.add
    namesakes: dict[RequestId, RequestState] = {}

    def note(self: Requests, request: RequestState) -> None:
        namesakes[request.request_id] = request
        add(self, request)

    def take(self: KvSource, lease_id: LeaseId) -> LeaseWanted | None:
        wanted = take_lease(self, lease_id)
        if wanted is None or not isinstance(wanted.asker, RequestState):
            return wanted
        return replace(wanted, asker=namesakes[wanted.asker.request_id])

    monkeypatch.setattr(Requests, "add", note)
    monkeypatch.setattr(KvSource, "take_lease", take)


def incarnations_of_host_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The Scheduler tells HostMemories apart, not links: one that lives keeps its number."""
    use_scheduler = HostProcess._use_scheduler
    hear, decide = SchedulerCore.hear, SchedulerCore.decide
    first: dict[object, ConnectionId] = {}
    numbers: dict[ConnectionId, ConnectionId] = {}
    latest: dict[ConnectionId, ConnectionId] = {}

    def use(self: HostProcess, engine: Any, link: Any) -> None:
        numbers[link.number] = first.setdefault((self.core, engine.core), link.number)
        use_scheduler(self, engine, link)

    def hear_event(self: SchedulerCore, event: Any, now_s: float) -> None:
        if isinstance(event, events.HostAttached):
            latest[numbers[event.connection]] = event.connection
        if isinstance(event, events.HostAttached | events.HostMessage | events.HostLost):
            event = replace(event, connection=numbers[event.connection])
        hear(self, event, now_s)

    def decide_for_latest(self: SchedulerCore, now_s: float) -> Any:
        return [
            replace(effect, connection=latest[effect.connection])
            if isinstance(effect, events.SendHost)
            else effect
            for effect in decide(self, now_s)
        ]

    monkeypatch.setattr(HostProcess, "_use_scheduler", use)
    monkeypatch.setattr(SchedulerCore, "hear", hear_event)
    monkeypatch.setattr(SchedulerCore, "decide", decide_for_latest)


def effects_to_any_link(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is for a link that has closed goes to the next one of its process or successor."""
    accept, link_of = SchedulerProcess._accept, SchedulerProcess.link_of
    peers: dict[ConnectionId, str] = {}

    def note(self: SchedulerProcess, peer: str, link: Any, *rest: Any) -> None:
        peers[link.number] = peer
        accept(self, peer, link, *rest)

    def find_any(self: SchedulerProcess, connection: ConnectionId) -> Any:
        return link_of(self, connection) or link_of(
            self, self._peers.get(peers[connection], connection)
        )

    monkeypatch.setattr(SchedulerProcess, "_accept", note)
    monkeypatch.setattr(SchedulerProcess, "link_of", find_any)


def reports_by_incarnation(monkeypatch: pytest.MonkeyPatch) -> None:
    """A report counts if the GPU actor that sent it is attached, over whatever link."""
    hear = SchedulerCore.hear
    incarnations: dict[ConnectionId, int] = {}

    def hear_event(self: SchedulerCore, event: Any, now_s: float) -> None:
        if isinstance(event, events.RankAttached):
            incarnations[event.connection] = event.incarnation
        hear(self, event, now_s)

    def is_current(self: RankEvents, event: Any) -> bool:
        attached = self._step_group_of(event.rank).attached.get(event.rank)
        return attached is not None and attached.incarnation == incarnations[event.connection]

    monkeypatch.setattr(SchedulerCore, "hear", hear_event)
    monkeypatch.setattr(RankEvents, "_is_current", is_current)


def followers_are_not_woken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits for another request's pages is not told when that one stops."""
    monkeypatch.setattr(WaitingQueue, "leader_stopped", lambda self, leader: None)


def claims_are_never_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages that L3 brought count as room taken in L2 after they were loaded."""
    monkeypatch.setattr(Lookups, "end_claim", lambda self, request: self.withdraw(request))


def late_ranks_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody ends a GPU actor that has stopped answering."""
    monkeypatch.setattr(LateRanks, "condemn", lambda self, now_s: None)


def former_links_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that comes again is somebody else until the end of its former link is noticed."""
    monkeypatch.setattr(NewestLinks, "open", lambda self, client, number, link: None)


CASES = [
    Case(
        mutant=leases_by_name,
        workload=Workload(
            seed=7,
            settings=SMALL_L1,
            l2_pages=40,
            storage=None,
            faults=Faults(link_delay_s=0.02),
            num_requests=60,
            num_prefixes=4,
            prefix_tokens=(24, 40),
            max_output_tokens=4,
            salt_fraction=0.0,
            abort_fraction=0.9,
            num_host_pauses=40,
            num_flushes=12,
            span_s=3.0,
        ),
    ),
    Case(mutant=incarnations_of_host_memory, workload=replace(FLAPS, num_host_flaps=4)),
    Case(
        mutant=effects_to_any_link,
        workload=replace(FLAPS, faults=Faults(turn_s=0.02), num_rank_flaps=8, num_host_flaps=8),
    ),
    Case(mutant=reports_by_incarnation, workload=replace(FLAPS, seed=4, num_rank_flaps=12)),
    Case(
        mutant=followers_are_not_woken,
        workload=Workload(
            seed=173,
            settings=replace(BASE_SETTINGS, prefill_budget_tokens=4),
            faults=Faults(copy_s=0.1, link_delay_s=0.02),
            num_requests=80,
            span_s=0.3,
            num_prefixes=2,
            prefix_tokens=(40,),
            salt_fraction=0.0,
            abort_fraction=0.8,
        ),
    ),
    Case(mutant=former_links_stay, workload=replace(FLAPS, num_client_flaps=8)),
    Case(mutant=claims_are_never_ended, workload=replace(FLAPS, settings=FROM_STORAGE)),
    Case(
        mutant=late_ranks_are_left_alone,
        workload=Workload(seed=0, settings=SMALL_L1, storage=None, num_rank_hangs=2),
    ),
]


@pytest.mark.part
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.mutant.__name__)
def test_mutant_is_found(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    find(case, monkeypatch)
