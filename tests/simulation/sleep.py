"""An engine that sleeps and wakes: what the Supervisor does about ranks, and the laws of it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from raydix.ids import HostPageId, PageKey
from raydix.runtime.cache.page_key import split_keys
from raydix.runtime.scheduler import events
from raydix.runtime.scheduler.core import SchedulerCore
from raydix.runtime.scheduler.phase import Phase

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster
    from tests.simulation.node import Node
    from tests.simulation.scheduler_process import SchedulerProcess

_ROOM_FACTOR = 2
"""An L2 of so many times all L1s loses nothing to make room."""
_ROUNDING_S = 1e-9


class LostInSleep(AssertionError):
    """L2 lacks what L1 held when its memory was given back, with room for all of it."""


class BelievedAsleep(AssertionError):
    """A Scheduler believes something of the L1 of ranks that sleep, or they have work."""


class DrainsOn(AssertionError):
    """Requests go on for longer than they may once the engine is to sleep."""


class WaitsOn(AssertionError):
    """A request waits for the wake for longer than it may."""


class WronglyTold(AssertionError):
    """Nothing is told of some order to sleep or to wake, or more than once."""


class ClusterSleep:
    """Owns: whether the ranks of an engine were told to sleep, and which orders are under way."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.is_asleep = False
        """Whether no rank may be started."""
        self._put_off: set[int] = set()
        """The ranks whose next process waits for the wake."""
        self._wants: list[bool] = []
        """Orders that wait for the one that is carried out: whether ranks are to sleep."""
        self._is_busy = False
        self._scheduler: SchedulerProcess | None = None
        self._life = 0
        self._held: set[tuple[int, PageKey]] = set()
        """Groups and keys of what L1 held when its memory was given back last."""

    def puts_off(self, rank: int) -> bool:
        """Whether a rank that is to be started has to wait for the wake, which then starts it."""
        if self.is_asleep:
            self._put_off.add(rank)
        return self.is_asleep

    def put_to_sleep(self, duration_s: float, *, with_weights: bool) -> None:
        """Somebody has the engine sleep, and somebody wakes it after a while."""
        cluster = self._cluster
        if cluster.is_ended or not cluster.scheduler.is_up:
            return
        cluster.num_faults["engine slept"] += 1
        cluster.to_core(events.FallAsleep(with_weights=with_weights))
        cluster.after(duration_s, self._wake)

    def _wake(self) -> None:
        """Wake the engine, however often that takes: its Scheduler may just be dead."""
        cluster = self._cluster
        if cluster.is_ended:
            return
        if not cluster.scheduler.is_up:
            cluster.after(0.05, self._wake)
            return
        if cluster.core.phase is Phase.ASLEEP:
            self._check_saved()
        cluster.to_core(events.WakeUp())
        if cluster.core.phase is not Phase.AWAKE:
            cluster.after(1.0, self._wake)

    def _check_saved(self) -> None:
        """L2 has all that L1 held, if nothing but sleep has happened and there is room for it."""
        node = self._cluster.node
        room = self._cluster.settings.num_lanes * sum(self._cluster.settings.num_pages)
        is_calm = set(self._cluster.num_faults) <= {"engine slept"}
        if is_calm and node.host is not None and node.num_l2_pages >= _ROOM_FACTOR * room:
            lost = self._held - _l2_names(node)
            if lost:
                raise LostInSleep(f"L2 lacks {len(lost)} of {len(self._held)} pages of L1")

    def give_back(self, scheduler: SchedulerProcess) -> None:
        """The core orders it: ranks hang up one by one, then the core is told."""
        self._scheduler, self._life = scheduler, scheduler.lives
        self._held = _l1_names(scheduler.core)
        self._order(is_sleep=True)

    def take_again(self) -> None:
        """The core orders it: ranks come back one by one, and those that died are made anew."""
        self._order(is_sleep=False)

    def _order(self, *, is_sleep: bool) -> None:
        self._wants.append(is_sleep)
        if not self._is_busy:
            self._next()

    def _next(self) -> None:
        self._is_busy = bool(self._wants)
        if self._wants:
            carry_out = self._give_back if self._wants.pop(0) else self._take_again
            carry_out()

    def _give_back(self) -> None:
        cluster = self._cluster
        self.is_asleep = True
        last_s = 0.0
        for rank in range(len(cluster.ranks)):
            # Pools and weights are copied and freed meanwhile.
            delay_s = cluster.clock.draw(cluster.faults.linger_s)
            last_s = max(last_s, delay_s)
            cluster.after(delay_s, partial(self._rest, rank))
        cluster.after(last_s, self._gave_back)

    def _rest(self, rank: int) -> None:
        if self._cluster.ranks[rank].is_alive:
            self._cluster.ranks[rank].rest()

    def _gave_back(self) -> None:
        scheduler = self._scheduler
        # The order of a Scheduler that is gone concerns nobody.
        if scheduler is not None and scheduler.is_up and scheduler.lives == self._life:
            self._cluster.to_core(events.RanksGaveBack())
        self._next()

    def _take_again(self) -> None:
        cluster = self._cluster
        self.is_asleep = False
        put_off, self._put_off = self._put_off, set()
        for rank in sorted(put_off):
            cluster.start_rank(rank)
        for rank in range(len(cluster.ranks)):
            delay_s = cluster.clock.draw(cluster.faults.linger_s)
            cluster.after(delay_s, partial(self._rise, rank))
        self._next()

    def _rise(self, rank: int) -> None:
        one = self._cluster.ranks[rank]
        if one.is_alive and not self.is_asleep:
            one.rise()


class DrainLaw:
    """Owns: since when an engine drains, which is to last no longer than it may.

    Nor does who has come meanwhile wait for longer, whether or not anything else happens.
    """

    def __init__(self, core: SchedulerCore) -> None:
        self._core = core
        self._since_s: float | None = None

    def before_events(self, now_s: float) -> None:
        """Raise WaitsOn if some request is late already, which an event was to come for."""
        core = self._core
        if core.phase is Phase.AWAKE:
            return
        since_s, may_wait_s = core._sleep._since_s, core.settings.max_asleep_wait_s
        for each in core._requests.unplaced.values():
            late_s = now_s - max(each.arrival_s, since_s) - may_wait_s
            # The rest of an output that has begun is asked for: it waits as those of before do.
            is_new = each.arrival_s > since_s and not len(each.submit.earlier_output)
            if is_new and late_s > _ROUNDING_S:
                raise WaitsOn(f"{each.request_id} waits for {late_s:.3f} s longer than it may")

    def after_event(self, now_s: float) -> None:
        """Raise DrainsOn if it has lasted for too long."""
        core = self._core
        if core.phase is Phase.PARKING and any(lane.running for lane in core._lanes):
            raise DrainsOn("requests run that are to be parked")
        if core.phase is not Phase.DRAINING:
            self._since_s = None
        elif self._since_s is None:
            self._since_s = now_s
        elif now_s > self._since_s + core.settings.max_drain_s:
            raise DrainsOn(f"the engine has drained for {now_s - self._since_s:.3f} s")


class OrderLaw:
    """Owns: of how many orders to sleep or to wake it was told in which phase they have come."""

    def __init__(self) -> None:
        self._num_told = 0

    def hear(self, effect: events.PhaseReached) -> None:
        """Raise WronglyTold unless each order is told of once, by what has come of it."""
        self._num_told += len(effect.outcomes)
        if self._num_told != effect.num_orders:
            raise WronglyTold(f"of {effect.num_orders} orders {self._num_told} are told of")


def _l2_names(node: Node) -> set[tuple[int, PageKey]]:
    """Groups and keys of the pages that L2 holds."""
    assert node.host is not None
    index = node.host._index
    names = map(index.name, map(HostPageId, range(node.geometry.num_host_pages)))
    return {name for name in names if name is not None}


def _l1_names(core: SchedulerCore) -> set[tuple[int, PageKey]]:
    names: set[tuple[int, PageKey]] = set()
    for lane in core._lanes:
        for run in lane.l1.tree.unlocked():
            keys = split_keys(run.keys)
            for group, page_ids in enumerate(run.page_ids):
                pairs = zip(keys, page_ids.tolist(), strict=True)
                names.update((group, key) for key, page_id in pairs if page_id)
    return names


def check_asleep(core: SchedulerCore) -> None:
    """Raise BelievedAsleep if a core that sleeps believes that L1 holds anything."""
    if core.phase is not Phase.ASLEEP:
        return
    for lane in core._lanes:
        num_cached = sum(
            lane.l1.tree.num_cached_pages(group) for group in range(lane.l1.pools.num_groups)
        )
        if num_cached or lane.running or len(lane.waiting) or not lane.in_flight.is_empty:
            raise BelievedAsleep(f"lane {lane.index} sleeps with {num_cached} pages cached")
    if core._source.leases:
        raise BelievedAsleep(f"{len(core._source.leases)} leases are held by an engine asleep")
