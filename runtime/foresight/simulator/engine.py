"""A Scheduler as a process of the simulation: the real core, its links and its death."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, assert_never

from raydix.ids import ClientId, ConnectionId
from raydix.runtime.foresight.simulator.links import End, Link, Turns
from raydix.runtime.foresight.simulator.world import CheckTurns, World
from raydix.runtime.messages.client import RequestDelta
from raydix.runtime.messages.routing import EngineNews
from raydix.runtime.scheduler import events
from raydix.runtime.scheduler.core import SchedulerCore
from raydix.runtime.scheduler.settings import SchedulerSettings

ToClient = RequestDelta | EngineNews | events.SendTokens
"""What a client hears of an engine."""


class SimulatedScheduler:
    """Owns: the Scheduler's core while its process lives, and the links that it has accepted."""

    def __init__(
        self,
        world: World,
        settings: SchedulerSettings,
        kill_rank: Callable[[events.KillRank], None],
    ) -> None:
        """`kill_rank` carries out what the core condemns."""
        self._world, self._settings, self._kill_rank = world, settings, kill_rank
        self._checks = CheckTurns(world.rules)
        self._links: dict[ConnectionId, Link] = {}
        self._peers: dict[str, ConnectionId] = {}
        self._clients: dict[ClientId, Link] = {}
        self._dialling: list[Callable[[], None]] = []
        """Who waits for the process to come back, in order."""
        self.core: SchedulerCore | None = None
        self.num_events = 0
        self.start()

    def start(self) -> None:
        """A process with a new core; whoever waits for it may dial."""
        core = self.core = SchedulerCore(self._settings)
        self._turns = Turns(
            self._world.clock,
            self._world.draw_turn_s,
            self._world.draw_size,
            partial(self._take, core),
            core.next_deadline_s,
            events.Tick(),
        )
        dialling, self._dialling = self._dialling, []
        for dial in dialling:
            self._world.after(0.0, dial)

    def kill(self) -> None:
        """SIGKILL: every link closes."""
        self.core = None
        self._turns.stop()
        for link in (*self._links.values(), *self._clients.values()):
            link.close()
        for kept in (self._links, self._peers, self._clients):
            kept.clear()

    def connect(self, use: Callable[[Link], None], is_wanted: Callable[[], bool]) -> None:
        """Somebody dials: `use` gets the link once the Scheduler is up, if it is still wanted."""
        if not is_wanted():
            return
        if self.core is None:
            self._dialling.append(lambda: self.connect(use, is_wanted))
        else:
            use(self._world.new_link())

    def accept_rank(self, link: Link, rank: int, incarnation: int, pid: int) -> None:
        """A GPU actor says hello."""
        number = link.number
        self._accept(
            f"rank {rank}",
            link,
            events.RankAttached(rank=rank, connection=number, incarnation=incarnation, pid=pid),
            lambda said: events.RankMessage(rank=rank, connection=number, message=said),
            events.RankLost(rank=rank, connection=number),
        )

    def accept_host(self, link: Link, l2: str) -> None:
        """HostMemory says hello, whose L2 has this name."""
        number = link.number
        self._accept(
            "host",
            link,
            events.HostAttached(connection=number, l2=l2),
            lambda said: events.HostMessage(connection=number, message=said),
            events.HostLost(connection=number),
        )

    def accept_client(self, link: Link, client: ClientId) -> None:
        """A client says hello."""
        if self.core is None:
            link.close()
            return
        self._clients[client] = link
        turns = self._turns

        def hear(message: Any) -> None:
            turns.post(events.ClientMessage(client_id=client, message=message))

        def lose() -> None:
            if self._clients.pop(client, None) is not None:
                turns.post(events.ClientGone(client_id=client))

        link.listen(End.ACCEPTOR, hear, lose)

    def _accept(
        self,
        peer: str,
        link: Link,
        attached: events.Event,
        event_of: Callable[[Any], events.Event],
        lost: events.Event,
    ) -> None:
        if self.core is None:
            link.close()
            return
        former = self._links.pop(self._peers.get(peer, ConnectionId(-1)), None)
        if former is not None:
            former.close()
        self._peers[peer] = link.number
        self._links[link.number] = link
        turns = self._turns

        def lose() -> None:
            self._links.pop(link.number, None)
            turns.post(lost)

        link.listen(End.ACCEPTOR, lambda message: turns.post(event_of(message)), lose)
        turns.post(attached)

    def _take(self, core: SchedulerCore, heard: Sequence[events.Event]) -> None:
        self.num_events += len(heard)
        for event in heard:
            core.hear(event, self._world.now_s)
        for effect in core.decide(self._world.now_s):
            self._carry_out(effect)
        if self._checks.is_due(len(heard)):
            core.check()

    def _carry_out(self, effect: events.Effect) -> None:
        match effect:
            case events.SendPlan():
                for connection in effect.connections:
                    self._send(connection, effect.plan)
            case events.SendHost():
                self._send(effect.connection, effect.message)
            case events.SendClient():
                self._tell(effect.client_id, effect.delta)
            case events.SendTokens():
                self._tell(effect.client_id, effect)
            case events.SendNews():
                self._tell(effect.client_id, effect.news)
            case events.KillRank():
                self._world.after(0.0, partial(self._kill_rank, effect))
            case (
                events.TellFollower()
                | events.PlanExperts()
                | events.CompileGrammar()
                | events.DropGrammar()
                | events.GiveBack()
                | events.TakeAgain()
                | events.PhaseReached()
            ):
                raise AssertionError(f"{effect} is of what is not simulated")
            case events.L1Flushed() | events.RecordingTold():
                pass
            case _:
                assert_never(effect)

    def _tell(self, client: ClientId, news: ToClient) -> None:
        if (link := self._clients.get(client)) is not None:
            link.send(End.DIALLER, news)

    def _send(self, connection: ConnectionId, message: object) -> None:
        if (link := self._links.get(connection)) is not None:
            link.send(End.DIALLER, message)
