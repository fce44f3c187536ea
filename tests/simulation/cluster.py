"""A whole engine on a virtual clock: a real Scheduler's core around modelled GPU ranks.

Bytes are modelled, not just counted: a page holds, per cell, the hash of all tokens up to that
place. A rank reads what its block table names, so that a page reused, published or loaded too early
shows as a `WrongHit`. Every delay is drawn from one seeded generator: the order of copies, steps
and messages differs with the seed.
"""

from collections import Counter
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Protocol

from raydix.ids import ClientId, RequestId, SchedulerName
from raydix.runtime.foresight.simulator.clock import Clock
from raydix.runtime.foresight.simulator.processes import Processes
from raydix.runtime.messages.client import PrefetchPrompt, SubmitRequest
from raydix.runtime.messages.plan import DeviceSampling, StepPlan
from raydix.runtime.scheduler import events
from raydix.runtime.scheduler.core import SchedulerCore
from tests.simulation.client_links import Answer, ClientLink
from tests.simulation.experts import SimulatedExperts
from tests.simulation.faults import Faults
from tests.simulation.meetings import Meetings
from tests.simulation.node import Node
from tests.simulation.ranks import SimulatedRank
from tests.simulation.scheduler_process import SchedulerProcess
from tests.simulation.sleep import ClusterSleep


class ClusterRank(Protocol):
    """A GPU actor of a cluster, which dials the Scheduler by itself."""

    rank: int
    incarnation: int
    pid: int
    is_alive: bool
    exit_s: float
    """When a killed process has exited."""

    def kill(self, linger_s: float) -> None:
        """No message leaves any more; copies that would end within `linger_s` still write."""

    def flap(self) -> None:
        """The link to the Scheduler breaks while both live."""

    def rest(self) -> None:
        """Hang up and lose all pages, as nothing is in flight."""

    def rise(self) -> None:
        """Have empty pages, and say hello again."""


MakeRank = Callable[["Cluster", int, int], ClusterRank]
"""Called with the cluster, the rank and its incarnation."""


class Cluster:
    """Owns: all that was asked of one replica."""

    def __init__(self, node: Node, make_rank: "MakeRank" = SimulatedRank) -> None:
        """Start an engine on a node, and wait until all its actors are attached."""
        self.node, self.world = node, node.world
        self.settings = settings = node.settings
        self.name = SchedulerName(f"scheduler {node.num_started}")
        """The name of its Scheduler, whichever of its processes lives."""
        self.is_ended = False
        """Whether all its processes were killed, and none is started any more."""
        self.num_overdue_kills = 0
        self._make_rank = make_rank
        self._hung_pids: set[int] = set()
        self._incarnations: Counter[int] = Counter()
        """The incarnation of each step group's ranks."""
        self.meetings = Meetings(settings)

        self.history: list[Answer] = []
        """The answers to requests, in the order in which these were sent."""
        self.hints: list[Answer] = []
        """The answers to prefetches."""
        self.answers: dict[RequestId, Answer] = {}
        """The answer to the latest request of each name."""
        self.on_ending: Callable[[Answer], None] = lambda answer: None
        """Called when a client has heard the last of an asking."""
        self._salts: dict[int, str | None] = {}
        """The cache salts, by seed."""
        self._clients: dict[str, ClientLink] = {}

        self.sleep = ClusterSleep(self)
        self.scheduler = SchedulerProcess(self)
        node.add(self)
        self.ranks: dict[int, ClusterRank] = {}
        for rank in range(settings.num_lanes * settings.ranks_per_lane):
            self.start_rank(rank)
        self.run(lambda: self.core.is_attached)

    @property
    def faults(self) -> Faults:
        """How the world misbehaves."""
        return self.world.faults

    @property
    def num_faults(self) -> Counter[str]:
        """What was done to actors, links and clients, by kind."""
        return self.world.num_faults

    @property
    def clock(self) -> Clock:
        """The virtual time of the world."""
        return self.world.clock

    @property
    def random(self) -> Random:
        """The one generator of chance."""
        return self.world.random

    @property
    def processes(self) -> Processes:
        """Processes, living and dead."""
        return self.world.processes

    @property
    def now_s(self) -> float:
        """The virtual time in seconds."""
        return self.world.now_s

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        """Run `action` once `delay_s` has passed."""
        self.world.after(delay_s, action)

    def run(self, until: Callable[[], bool] | None = None, *, limit_s: float = 1000.0) -> None:
        """Advance until `until` holds or nothing is left to happen."""
        is_decided = self.clock.run(until, limit_s)
        assert is_decided, f"nothing was decided for {limit_s} s: {self.core.stats()}"

    def run_until(self, time_s: float) -> None:
        """Let everything happen that is due by then."""
        self.clock.at(time_s, lambda: None)
        self.run(lambda: self.now_s >= time_s, limit_s=time_s)

    def draw_step_s(self, plan: StepPlan) -> float:
        """How long a step with rows takes."""
        num_tokens = int(plan.row_num_tokens.sum())
        return self.clock.draw(self.faults.step_s) + num_tokens * self.faults.token_s

    @property
    def core(self) -> SchedulerCore:
        """The Scheduler's, or while it is dead its last."""
        return self.scheduler.core

    def to_core(self, event: events.Event) -> None:
        """The Scheduler takes this event now, before what its links have brought."""
        self.scheduler.take_now(event)

    def count(self, counter: str) -> float:
        """A counter of the Scheduler's, over all its lives."""
        return self.scheduler.lost_counters[counter] + self.core.stats().get(counter, 0)

    def client(self, name: str) -> ClientLink:
        """The link of a client, connected anew if it lost its last one; the Scheduler is up."""
        assert self.scheduler.is_up
        known = self._clients.get(name)
        if known is not None and known.link.is_open:
            return known
        link = self.world.new_link()
        made = self._clients[name] = ClientLink(self, name, ClientId(f"{name}#{link.number}"), link)
        self.scheduler.accept_client(made)
        return made

    def submit(self, message: SubmitRequest, client: str = "client") -> Answer:
        """A request arrives now. Ranks know its salt by its seed, as its name may come again."""
        self._salts[message.sampling.seed] = message.cache_salt
        answer = self.client(client).ask(message)
        self.history.append(answer)
        self.answers[message.request_id] = answer
        return answer

    def prefetch(self, message: PrefetchPrompt, client: str = "client") -> Answer:
        """A client announces a prompt."""
        answer = self.client(client).ask(message)
        self.hints.append(answer)
        return answer

    def abort(self, request_id: RequestId) -> None:
        """Whoever sent the latest request of this name ends it."""
        answer = self.answers[request_id]
        answer.link.abort(answer)

    def cache_salt(self, sampling: DeviceSampling) -> str | None:
        """The salt of the request that a rank knows by this."""
        return self._salts[sampling.seed]

    def experts_of_group(self, rank: int) -> list[SimulatedExperts]:
        """The experts of the ranks that it steps with, in order, itself included."""
        width = self.settings.ranks_per_group
        first = rank // width * width
        ranks = [self.ranks[each] for each in range(first, first + width)]
        return [
            each.experts
            for each in ranks
            if isinstance(each, SimulatedRank) and each.experts is not None
        ]

    def end(self) -> None:
        """SIGKILL to all its processes: the engine ends for good.

        HostMemory is told of it once all have exited.
        """
        self.num_faults["engine ended"] += 1
        self.is_ended = True
        self.scheduler.end()
        for rank in self.ranks:
            if self.ranks[rank].is_alive:
                self._end(rank)
        exits_s = [rank.exit_s for rank in self.ranks.values()]
        self.clock.at(max(exits_s), partial(self.node.forget, self))

    def start_rank(self, rank: int) -> None:
        """Create a GPU actor; while the engine sleeps that waits for the wake."""
        if self.is_ended or self.sleep.puts_off(rank):
            return
        incarnation = self._incarnations[rank // self.settings.ranks_per_group]
        self.ranks[rank] = self._make_rank(self, rank, incarnation + 1)

    def kill_rank(self, rank: int) -> None:
        """SIGKILL: the link closes, copies may linger, and the ranks that step with it end, too.

        Once all have exited, new actors are created.
        """
        if not self.ranks[rank].is_alive:
            return
        self.num_faults["GPU actor killed"] += 1
        width = self.settings.ranks_per_group
        group = range(rank // width * width, (rank // width + 1) * width)
        is_first = all(self.ranks[each].is_alive for each in group)
        self._end(rank)
        if is_first:
            # The others are ended a little later: until then they go on.
            self.after(self.clock.draw(self.faults.link_delay_s), lambda: self._end_group(group))

    def hang_rank(self, rank: int) -> None:
        """A rank stops answering, with its link open: only the Scheduler can notice."""
        if self.ranks[rank].is_alive:
            self.num_faults["GPU actor hung"] += 1
            self._hung_pids.add(self.ranks[rank].pid)
            self.scheduler.hear_no_more_of(rank)

    def end_hung_ranks(self) -> None:
        """SIGKILL to the ranks that hang, which a Scheduler without work has no way to notice."""
        for number, rank in tuple(self.ranks.items()):
            if rank.pid in self._hung_pids:
                self.kill_rank(number)

    def _end_group(self, group: range) -> None:
        for rank in group:
            if self.ranks[rank].is_alive:
                self._end(rank)
        exits_s = [self.ranks[rank].exit_s for rank in group]
        self._incarnations[group.start // self.settings.ranks_per_group] += 1
        restart_s = max(0.0, max(exits_s) - self.now_s) + self.clock.draw(self.faults.linger_s)
        for rank in group:
            self.after(restart_s, partial(self.start_rank, rank))

    def _end(self, rank: int) -> None:
        exit_s = self.clock.draw(self.faults.linger_s)
        self.ranks[rank].kill(exit_s)
        self.processes.end(self.ranks[rank].pid, exit_s)

    def kill_condemned(self, order: events.KillRank) -> None:
        """The Scheduler has condemned a rank."""
        rank = self.ranks[order.rank]
        if rank.is_alive and rank.incarnation == order.incarnation:
            # Where one hangs, those that step with it wait for it.
            width = self.settings.ranks_per_group
            first = order.rank // width * width
            pids = {self.ranks[each].pid for each in range(first, first + width)}
            is_healthy = not pids & self._hung_pids
            self.num_overdue_kills += is_healthy and order.cause is events.KillCause.LATE
            self.kill_rank(order.rank)
