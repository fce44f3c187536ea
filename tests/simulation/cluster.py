"""A whole engine on a virtual clock: the real Scheduler and HostMemory cores around modelled GPU ranks and storage.

Bytes are modelled, not just counted: a page holds, per slot, the hash of all tokens up to that place. A rank reads what
its block table names, so that a page reused, published or loaded too early shows as a `WrongHit`. Every delay is drawn
from one seeded generator: the order of copies, steps and messages differs with the seed.
"""

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from raydix.ids import AskingId, ClientId, RequestId
from raydix.runtime.cache import host_events
from raydix.runtime.cache.arena_geometry import ArenaGeometry, plan_arena
from raydix.runtime.cache.host_events import HostSettings, StorageSettings
from raydix.runtime.cache.host_memory import HostMemoryCore
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.client import AbortRequest, PrefetchPrompt, RequestDelta, StopRequest, SubmitRequest
from raydix.runtime.messages.plan import StepPlan
from raydix.runtime.scheduler import events
from raydix.runtime.scheduler.core import SchedulerCore
from raydix.runtime.scheduler.settings import SchedulerSettings
from tests.simulation.ranks import SimulatedRank
from tests.simulation.storage import PagePart, SimulatedStorage
from tests.simulation.touch_order import TouchOrderWatch


@dataclass(slots=True)
class Faults:
    """How the simulated world misbehaves; times are virtual seconds."""

    link_delay_s: float = 0.002
    step_s: float = 0.010
    copy_s: float = 0.020
    storage_s: float = 0.030
    storage_failure_fraction: float = 0.0
    storage_full_fraction: float = 0.0
    """Of writes."""
    bad_object_fraction: float = 0.0
    linger_s: float = 0.100
    """A killed process may go on copying for so long after its links have closed."""


class ClusterRank(Protocol):
    """A GPU actor of a cluster."""

    incarnation: int
    pid: int
    is_alive: bool

    def receive(self, plan: StepPlan) -> None:
        """A plan is on its way."""

    def kill(self, linger_s: float) -> None:
        """No message leaves any more; copies that would end within `linger_s` still write."""


MakeRank = Callable[["Cluster", int, int], ClusterRank]
"""Called with the cluster, the rank and its incarnation."""


@dataclass(slots=True)
class Answer:
    """What a client has seen of one request."""

    submit: SubmitRequest
    tokens: list[int] = field(default_factory=list)
    sources: dict[str, int] | None = None
    ending: str | None = None
    first_token_s: float | None = None


class Cluster:
    """One replica, its node's HostMemory and one storage actor."""

    def __init__(
        self,
        settings: SchedulerSettings,
        *,
        seed: int,
        l2_pages: int = 64,
        storage: StorageSettings | None = None,
        faults: Faults | None = None,
        make_rank: "MakeRank" = SimulatedRank,
    ) -> None:
        self.settings = settings
        self._make_rank = make_rank
        self.random = random.Random(seed)
        self.faults = faults or Faults()
        self.now_s = 0.0
        self.answers: dict[RequestId, Answer] = {}
        self.hints: dict[RequestId, RequestDelta | None] = {}
        self._askings: dict[RequestId, AskingId] = {}
        """Prefetches that were asked for, and their answers; what was told of another client's goes nowhere."""
        self.geometry: ArenaGeometry = plan_arena(settings.layout, l2_pages * settings.layout.host_page_bytes(0))
        empty_page: PagePart = (None,) * settings.page_size
        self.arena = [[empty_page] * settings.ranks_per_lane for _ in range(self.geometry.num_host_pages)]
        """What each host page holds, per rank of a lane."""
        self.generations = np.zeros(self.geometry.num_host_pages, dtype=np.int32)
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._serial = itertools.count()
        self._link_free_s: dict[str, float] = {}
        self.core = SchedulerCore(settings)
        self.check_interval = 5
        """Every so many events the cores prove their invariants."""
        self._num_events = 0
        self.ranks: dict[int, ClusterRank] = {}
        self.storage_settings = storage
        self.storage = SimulatedStorage(self, pid=1) if storage else None
        self.has_storage = storage is not None
        """False while no backend is attached, between two."""
        self.on_ending: Callable[[RequestId], None] = lambda request_id: None
        """Called when a request has had its last delta; may not give the Scheduler an event."""
        self.host: HostMemoryCore | None = None
        self.watch = TouchOrderWatch()
        self.host_incarnation = 0
        self._exits_s: dict[int, float] = {}
        """When a killed process has ended or will have, by pid."""
        self.num_overdue_kills = 0
        self.num_faults: Counter[str] = Counter()
        """What was done to actors and clients, by kind."""
        self.lost_counters: Counter[str] = Counter()
        """Of the HostMemory cores that were killed."""
        self._attached_storage: tuple[int, int] | None = None
        self._incarnations = itertools.count(1)
        if settings.has_host_memory:
            self.start_host(is_first=True)
        self._attach_storage()
        for rank in range(settings.num_lanes * settings.ranks_per_lane):
            self.start_rank(rank)

    # The clock -------------------------------------------------------------------------------------------------

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        """Run `action` once `delay_s` has passed."""
        heapq.heappush(self._queue, (self.now_s + delay_s, next(self._serial), action))

    def draw(self, mean_s: float) -> float:
        """A random duration; now and then a long one."""
        scale = 10.0 if self.random.random() < 0.05 else 1.0
        return self.random.uniform(0.1, 1.9) * mean_s * scale

    def deliver(self, link: str, action: Callable[[], None]) -> None:
        """Run `action` after a random delay, in the order in which messages were put on this link."""
        arrival_s = max(self.now_s + self.draw(self.faults.link_delay_s), self._link_free_s.get(link, 0.0))
        self._link_free_s[link] = arrival_s
        heapq.heappush(self._queue, (arrival_s, next(self._serial), action))

    def run(self, until: Callable[[], bool] | None = None, *, limit_s: float = 1000.0) -> None:
        """Advance until `until` holds or nothing is left to happen."""
        while self._queue and not (until is not None and until()):
            time_s, _, action = heapq.heappop(self._queue)
            assert time_s <= limit_s, f"nothing was decided for {limit_s} s: {self.core.stats()}"
            self.now_s = max(self.now_s, time_s)
            action()

    # The Scheduler ---------------------------------------------------------------------------------------------

    def to_core(self, event: events.Event) -> None:
        """Give the Scheduler an event and carry out its effects."""
        for effect in self.core.handle(event, self.now_s):
            self._carry_out(effect)
        if self._is_check_due():
            self.core.check()
        due_s = self.core.next_deadline_s()
        if due_s is not None and due_s > self._link_free_s.get("tick", -1.0):
            self._link_free_s["tick"] = due_s
            self.after(max(0.0, due_s - self.now_s), lambda: self.to_core(events.Tick()))

    def _is_check_due(self) -> bool:
        self._num_events += 1
        return self._num_events % self.check_interval == 0

    def _carry_out(self, effect: events.Effect) -> None:
        match effect:
            case events.SendPlan():
                width = self.settings.ranks_per_lane
                for rank in range(effect.lane * width, (effect.lane + 1) * width):
                    self.ranks[rank].receive(effect.plan)
            case events.SendHost():
                incarnation = self.host_incarnation
                self.deliver("scheduler>host", lambda: self._host_hears(incarnation, effect.message))
            case events.SendClient():
                self._client_hears(effect.delta)
            case events.KillRank():
                self.after(0.0, lambda: self._kill_overdue(effect.rank, effect.incarnation))

    def _client_hears(self, delta: RequestDelta) -> None:
        if delta.request_id in self.hints:
            assert self.hints[delta.request_id] is None, "a prefetch is answered once"
            self.hints[delta.request_id] = delta
            return
        answer = self.answers[delta.request_id]
        assert answer.ending is None, f"{delta.request_id} hears after its end"
        answer.tokens.extend(delta.token_ids.tolist())
        if delta.token_ids.size and answer.first_token_s is None:
            answer.first_token_s = self.now_s
        if delta.cached_tokens_by_source is not None:
            assert answer.sources is None, "sources are told once"
            answer.sources = delta.cached_tokens_by_source
        if delta.finished is not None:
            answer.ending = delta.finished.value
        if delta.failure is not None:
            answer.ending = delta.failure.kind.value
        if answer.ending is not None:
            self.on_ending(delta.request_id)

    # Clients ---------------------------------------------------------------------------------------------------

    def submit(self, message: SubmitRequest, client: str = "client") -> None:
        """A request arrives now."""
        self.answers[message.request_id] = Answer(message)
        self._askings[message.request_id] = message.asking
        self.to_core(events.ClientMessage(client_id=ClientId(client), message=message))

    def prefetch(self, message: PrefetchPrompt, client: str = "client") -> None:
        """A client announces a prompt."""
        self.hints[message.request_id] = None
        self._askings[message.request_id] = message.asking
        self.to_core(events.ClientMessage(client_id=ClientId(client), message=message))

    def abort(self, request_id: RequestId, client: str = "client") -> None:
        """A client ends a request."""
        message = AbortRequest(asking=self._askings[request_id], request_id=request_id)
        self.to_core(events.ClientMessage(client_id=ClientId(client), message=message))

    def stop(self, request_id: RequestId, client: str = "client") -> None:
        """A client has found a stop string."""
        message = StopRequest(asking=self._askings[request_id], request_id=request_id)
        self.to_core(events.ClientMessage(client_id=ClientId(client), message=message))

    def lose_client(self, client: str, request_ids: Iterable[RequestId]) -> None:
        """A client vanishes; it must not hear of its requests again."""
        self.num_faults["client lost"] += 1
        for request_id in request_ids:
            if self.answers[request_id].ending is None:
                self.answers[request_id].ending = "gone"
        self.to_core(events.ClientGone(client_id=ClientId(client)))

    def cache_salt(self, request_id: RequestId) -> str | None:
        """The salt that a request was submitted with."""
        return self.answers[request_id].submit.cache_salt

    # GPU ranks -------------------------------------------------------------------------------------------------

    def start_rank(self, rank: int) -> None:
        """Create a GPU actor; it says hello at once."""
        made = self._make_rank(self, rank, next(self._incarnations))
        self.ranks[rank] = made
        attached = events.RankAttached(rank=rank, incarnation=made.incarnation, pid=made.pid)
        self.to_core(attached)

    def kill_rank(self, rank: int) -> None:
        """SIGKILL: the link closes at once, copies may linger, then a new actor is created. Lanes of one rank only."""
        assert self.settings.ranks_per_lane == 1, "the death of a rank of a group is not modelled"
        self.num_faults["GPU actor killed"] += 1
        dead = self.ranks[rank]
        exit_s = self.draw(self.faults.linger_s)
        dead.kill(exit_s)
        self._exits_s[dead.pid] = self.now_s + exit_s
        self.to_core(events.RankLost(rank=rank, incarnation=dead.incarnation))
        self.after(exit_s + self.draw(self.faults.linger_s), lambda: self.start_rank(rank))

    def _kill_overdue(self, rank: int, incarnation: int) -> None:
        if self.ranks[rank].is_alive and self.ranks[rank].incarnation == incarnation:
            self.num_overdue_kills += 1
            self.kill_rank(rank)

    # HostMemory ------------------------------------------------------------------------------------------------

    def start_host(self, *, is_first: bool = False) -> None:
        """Create HostMemory, on a new arena or on the one that its predecessor left."""
        self.host_incarnation += 1
        self.host = HostMemoryCore(
            self.geometry,
            HostSettings(
                page_size=self.settings.page_size,
                incarnation=self.host_incarnation,
                storage=self.storage_settings or StorageSettings(),
                has_storage=self.has_storage,
            ),
            None if is_first else int32_array(self.generations),
        )
        self.watch = TouchOrderWatch()
        self.to_host(host_events.SchedulerAttached(1))
        self.to_core(events.HostAttached(incarnation=self.host_incarnation))

    def kill_host(self) -> None:
        """SIGKILL HostMemory: its index is lost, the arena stays; the storage actor drains, then attaches anew."""
        assert self.host is not None
        self.num_faults["HostMemory killed"] += 1
        self.lost_counters.update(self.host.counters)
        incarnation, self.host = self.host_incarnation, None
        self.to_core(events.HostLost(incarnation=incarnation))
        self.after(self.draw(0.2), self._restart_host)

    def _restart_host(self) -> None:
        is_copying = self.storage is not None and self.storage.is_busy
        if is_copying or any(exit_s > self.now_s for exit_s in self._exits_s.values()):
            self.after(0.01, self._restart_host)
            return
        self.start_host()
        self._attach_storage()

    def _attach_storage(self) -> None:
        if self.storage is None or self.host is None or not self.storage.is_up:
            return
        if self._attached_storage != (self.host_incarnation, self.storage.pid):
            self._attached_storage = (self.host_incarnation, self.storage.pid)
            self.to_host(host_events.StorageAttached(self.storage.pid))

    def pause_host(self, duration_s: float) -> None:
        """SIGSTOP, then SIGCONT: what the Scheduler sends is heard late."""
        self.num_faults["HostMemory silent"] += 1
        self._link_free_s["scheduler>host"] = self.now_s + duration_s

    def kill_storage(self) -> None:
        """SIGKILL the storage actor: its reads may linger; its objects stay; then a new one attaches."""
        assert self.storage is not None
        if self.storage.is_up:
            self.num_faults["storage killed"] += 1
            exit_s = self._end_storage(self.storage)
            self.after(exit_s + self.draw(self.faults.linger_s), self._storage_is_up)

    def switch_storage(self) -> None:
        """Retire the backend and end its actor, done or not; later attach another one, which may be empty."""
        assert self.storage is not None
        if self.storage.is_up:
            self.num_faults["storage switched"] += 1
            retired = self.storage
            self.to_host(host_events.RetireStorage())
            self.after(self.draw(0.1), lambda: self._detach_storage(retired))

    def _detach_storage(self, retired: SimulatedStorage) -> None:
        if self.storage is not retired:
            return
        exit_s = self._end_storage(retired)
        self.has_storage = False
        if self.random.random() < 0.5:
            self.storage.objects, self.storage.bad_keys = {}, set()
        self.after(exit_s, lambda: self.to_host(host_events.DetachStorage()))
        self.after(exit_s + self.draw(0.3), self._storage_is_up)

    def _end_storage(self, dead: SimulatedStorage) -> float:
        """How long the process of a storage actor lives on after its link has closed."""
        exit_s = self.draw(self.faults.linger_s)
        dead.exit_s = self._exits_s[dead.pid] = self.now_s + exit_s
        self.storage = SimulatedStorage(self, pid=dead.pid + 1)
        self.storage.objects, self.storage.bad_keys = dead.objects, dead.bad_keys
        self.storage.is_up = False
        self.to_host(host_events.StorageLost())
        return exit_s

    def _storage_is_up(self) -> None:
        assert self.storage is not None
        self.storage.is_up = self.has_storage = True
        self._attach_storage()

    def _host_hears(self, incarnation: int, message: events.ToHost) -> None:
        if incarnation == self.host_incarnation:
            self.to_host(host_events.FromScheduler(message))

    def to_host(self, event: host_events.HostEvent) -> None:
        """Give HostMemory an event and carry out its effects."""
        if self.host is None:
            return
        self.watch.hears(event)
        for effect in self.host.handle(event, self.now_s):
            self.watch.says(effect)
            self._carry_out_for_host(effect)
        if self._is_check_due():
            self.host.check()
        due_s = self.host.next_deadline_s()
        if due_s is not None and due_s > self._link_free_s.get("host tick", -1.0):
            self._link_free_s["host tick"] = due_s
            self.after(max(0.0, due_s - self.now_s), lambda: self.to_host(host_events.Tick()))

    def _carry_out_for_host(self, effect: host_events.HostEffect) -> None:
        incarnation = self.host_incarnation
        match effect:
            case host_events.SetGenerations():
                self.generations[effect.host_page_ids] = effect.generations
            case host_events.ToScheduler(message):
                event = events.HostMessage(incarnation=incarnation, message=message)
                self.deliver("host>scheduler", lambda: self.to_core(event))
            case host_events.ToStorage(message):
                assert self.storage is not None
                self.storage.receive(message)
            case host_events.WatchProcess(pid):
                exited = host_events.ProcessExited(pid)
                self.after(max(0.0, self._exits_s[pid] - self.now_s), lambda: self.to_host(exited))
            case host_events.StorageFlushed() | host_events.StorageRetired():
                pass
