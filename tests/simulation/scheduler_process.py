"""The Scheduler as a process: the real core, its links, its clients' outboxes, and its death."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, assert_never

from raydix.ids import ClientId, ConnectionId
from raydix.runtime.foresight.simulator.links import End, Link, Turns
from raydix.runtime.scheduler import events
from raydix.runtime.scheduler.core import SchedulerCore
from raydix.runtime.scheduler.expert_plans import plan_experts
from raydix.runtime.scheduler.newest_links import NewestLinks
from raydix.runtime.scheduler.phase import Phase
from tests.simulation.batches import check_plans
from tests.simulation.client_links import ClientAsking, ClientLink
from tests.simulation.ends_watch import EndsWatches
from tests.simulation.followers import Followers
from tests.simulation.grammars import ModelledCompilers
from tests.simulation.hints import EarlyLoadLaw, check_hints, check_told
from tests.simulation.named_pages import NamedPages
from tests.simulation.queue_order import check_turns
from tests.simulation.recording import RecordingLaw
from tests.simulation.sleep import DrainLaw, OrderLaw, check_asleep

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster, ClusterRank

_REDIAL_S = 0.01
_NEVER_S = 1e9
"""No run lasts so long."""


class SchedulerProcess:
    """Owns: the Scheduler's core, whether its process is up, and the links that it has accepted."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.is_up = False
        self.lives = 0
        """How often its process has ended: what was asked of one does not concern the next."""
        self.lost_counters: Counter[str] = Counter()
        """The counters of the cores that were killed."""
        self._dialled: list[Link] = []
        self._links: dict[ConnectionId, Link] = {}
        self._peers: dict[str, ConnectionId] = {}
        """The latest link of each rank and of HostMemory."""
        self._clients: dict[ClientId, ClientLink] = {}
        self.start()

    def start(self) -> None:
        """A process with a new core; whoever waits for it may dial."""
        self._newest = NewestLinks()
        phase = Phase.ASLEEP if self._cluster.sleep.is_asleep else Phase.AWAKE
        self.core = SchedulerCore(self._cluster.settings, phase)
        self.followers = Followers(self._cluster, self.core)
        self._early_loads, self._drains = EarlyLoadLaw(self.core), DrainLaw(self.core)
        self._orders = OrderLaw()
        self._recording, self._ends = RecordingLaw(self.core), EndsWatches(self.core)
        self._named_pages = [NamedPages(lane) for lane in self.core._lanes]
        """The pages that each lane's plans have named."""
        self._compilers = ModelledCompilers(self._cluster)
        self._turns = Turns(
            self._cluster.clock,
            self._cluster.world.draw_turn_s,
            self._cluster.world.draw_size,
            self._take,
            self.core.next_deadline_s,
            events.Tick(),
        )
        self.is_up = True

    def kill(self, down_s: float) -> None:
        """SIGKILL: every link closes; a new process is there after `down_s`."""
        if self.is_up:
            self._end()
            self._cluster.after(down_s, self._restart)

    def _restart(self) -> None:
        if not self._cluster.is_ended:
            self.start()

    def end(self) -> None:
        """SIGKILL, and no other process comes."""
        if self.is_up:
            self._end()

    def _end(self) -> None:
        self._cluster.num_faults["Scheduler killed"] += 1
        self.is_up = False
        self.lost_counters.update(
            {
                name: int(count)
                for name, count in self.core.stats().items()
                if isinstance(count, int | float)
            }
        )
        self._turns.stop()
        for link in (*self._dialled, *(client.link for client in self._clients.values())):
            link.close()
        self.lives += 1
        for kept in (self._dialled, self._links, self._peers, self._clients):
            kept.clear()

    def take_now(self, event: events.Event) -> None:
        """A control call: the core takes this event at once."""
        self._turns.take_now(event)

    def connect(self, use: Callable[[Link], None], is_wanted: Callable[[], bool]) -> None:
        """Somebody dials: `use` gets the link once the Scheduler is up, if it is still wanted."""
        if not is_wanted():
            return
        if not self.is_up:
            self._cluster.after(_REDIAL_S, lambda: self.connect(use, is_wanted))
            return
        link = self._cluster.world.new_link()
        self._dialled = [*(known for known in self._dialled if known.is_open), link]
        use(link)

    def accept_rank(self, link: Link, rank: ClusterRank) -> None:
        """A GPU actor says hello."""
        number, connection = rank.rank, link.number
        attached = events.RankAttached(
            rank=number, connection=connection, incarnation=rank.incarnation, pid=rank.pid
        )
        self._accept(f"rank {number}", link, attached)
        self._read(
            link,
            lambda message: events.RankMessage(rank=number, connection=connection, message=message),
            events.RankLost(rank=number, connection=connection),
        )

    def hear_no_more_of(self, rank: int) -> None:
        """What a rank says from now on over its link never arrives."""
        link = self._links.get(self._peers.get(f"rank {rank}", ConnectionId(-1)))
        if link is not None:
            link.hold_up(End.ACCEPTOR, _NEVER_S)

    def accept_host(self, link: Link) -> None:
        """HostMemory says hello."""
        connection = link.number
        self._accept("host", link, events.HostAttached(connection=connection))
        self._read(
            link,
            lambda message: events.HostMessage(connection=connection, message=message),
            events.HostLost(connection=connection),
        )

    def _accept(self, peer: str, link: Link, attached: events.Event) -> None:
        former = self._links.pop(self._peers.get(peer, ConnectionId(-1)), None)
        if former is not None:
            former.close()
        self._peers[peer] = link.number
        self._links[link.number] = link
        self._turns.post(attached)

    def _read(
        self, link: Link, event_of: Callable[[Any], events.Event], lost: events.Event
    ) -> None:
        """Post what a link brings, and its end; some readers lag behind the next link.

        Once none is to lag any more, what comes then waits for nothing but what came before.
        """
        turns, cluster = self._turns, self._cluster
        lags = cluster.random.random() < cluster.faults.lag_fraction
        lag_s = cluster.clock.draw(cluster.faults.reconnect_s) if lags else 0.0
        posted_s = 0.0

        def post(event: events.Event) -> None:
            nonlocal posted_s
            if lag_s and cluster.faults.lag_fraction:
                posted_s = cluster.now_s + lag_s
            if posted_s > cluster.now_s:
                cluster.clock.at(posted_s, lambda: turns.post(event))
            else:
                turns.post(event)

        def lose() -> None:
            self._links.pop(link.number, None)
            post(lost)

        link.listen(End.ACCEPTOR, lambda message: post(event_of(message)), lose)

    def accept_client(self, client: ClientLink) -> None:
        """A client says hello, perhaps before the end of its former link is noticed."""
        given_up = self._newest.open(client.name, client.link.number, client.client_id)
        if given_up is not None:
            self._lose_client(self._clients[given_up])
        self._clients[client.client_id] = client
        hear = partial(self.hear_client, client)
        client.link.listen(End.ACCEPTOR, hear, lambda: self._lose_client(client))

    def hear_client(self, client: ClientLink, message: ClientAsking) -> None:
        """A client asks for something."""
        if client.client_id in self._clients:
            event = events.ClientMessage(client_id=client.client_id, message=message)
            self._turns.post(event)

    def _lose_client(self, client: ClientLink) -> None:
        if self._clients.pop(client.client_id, None) is client:
            self._newest.close(client.name, client.client_id)
            client.link.close()
            self._turns.post(events.ClientGone(client_id=client.client_id))

    def link_of(self, connection: ConnectionId) -> Link | None:
        """The link that an effect names, if it is still there."""
        return self._links.get(connection)

    def _take(self, heard: Sequence[events.Event]) -> None:
        self._early_loads.before_events()
        self._drains.before_events(self._cluster.now_s)
        self._recording.before_events(self._cluster.now_s)
        for event in heard:
            self.core.hear(event, self._cluster.now_s)
            self._early_loads.after_hearing()
            self._ends.after_event()
            for named in self._named_pages:
                named.forget_done(event)
        self._decide(heard)
        self._early_loads.after_decision()
        self._drains.after_event(self._cluster.now_s)

        for change in self.followers.due():
            self.core.hear(change, self._cluster.now_s)
            self._decide([change])
        self._check(len(heard))
        for client in tuple(self._clients.values()):
            client.flush()

    def _decide(self, heard: Sequence[events.Event]) -> None:
        self._recording.before_decision(self._cluster.now_s)
        effects = self.core.decide(self._cluster.now_s)
        self._recording.note_ends(self._cluster.now_s)
        check_plans(heard, effects)
        for effect in effects:
            self._carry_out(effect)

    def _check(self, num_heard: int) -> None:
        if self._cluster.world.is_check_due(num_heard):
            self.core.check()
            check_hints(self.core)
            check_turns(self.core, self._cluster.clock.now_s)
            check_asleep(self.core)
            self._ends.check()
            self.followers.compare()
            for named in self._named_pages:
                named.check()

    def _carry_out(self, effect: events.Effect) -> None:
        match effect:
            case events.SendPlan():
                self._named_pages[effect.lane].send(effect.plan)
                for connection in effect.connections:
                    self._send(connection, effect.plan)
            case events.SendHost():
                self._send(effect.connection, effect.message)
            case events.SendClient():
                check_told(self.core, effect.delta)
                if (client := self._clients.get(effect.client_id)) is not None:
                    client.add(effect.delta)
            case events.SendTokens():
                if (client := self._clients.get(effect.client_id)) is not None:
                    client.add_tokens(effect.askings.tolist(), effect.token_ids.tolist())
            case events.TellFollower():
                self.followers.hear(effect)
            case events.SendNews():
                self.followers.hear_news(effect)
            case events.KillRank():
                self._cluster.after(0.0, partial(self._cluster.kill_condemned, effect))
            case events.PlanExperts():
                self._plan_experts(effect)
            case events.CompileGrammar():
                self._compilers.start(effect, self._turns.post)
            case events.DropGrammar():
                self._compilers.drop(effect)
            case events.RecordingTold():
                self._recording.hear(effect, self._cluster.now_s)
            case events.PhaseReached():
                self._orders.hear(effect)
            case events.L1Flushed():
                pass
            case events.GiveBack():
                self._cluster.sleep.give_back(self)
            case events.TakeAgain():
                self._cluster.sleep.take_again()
            case _:
                assert_never(effect)

    def _plan_experts(self, effect: events.PlanExperts) -> None:
        """Another process works it out in its own time, or fails."""
        experts, cluster, turns = self._cluster.settings.experts, self._cluster, self._turns
        assert experts is not None, "only lanes that share experts ask"
        wanted = effect.wanted
        plan = None
        if cluster.random.random() >= cluster.faults.planner_failure_fraction:
            plan = plan_experts(wanted.current, wanted.rows_per_step_LE, experts.facts)
        planned = events.ExpertsPlanned(
            step_group=effect.step_group, number=wanted.number, plan=plan
        )
        cluster.after(cluster.clock.draw(cluster.faults.planner_s), lambda: turns.post(planned))

    def _send(self, connection: ConnectionId, message: object) -> None:
        link = self.link_of(connection)
        if link is not None:
            link.send(End.DIALLER, message)
