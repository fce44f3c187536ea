"""The Scheduler actor: a shell around `SchedulerCore`, which joins its links into one stream."""

import asyncio
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, assert_never

from raydix.errors import AccountingError
from raydix.ids import RequestId
from raydix.runtime.actors.client_links import ClientLinks
from raydix.runtime.actors.core_answers import CoreAnswers, RecordingOrder
from raydix.runtime.actors.expert_planner import ExpertPlanner
from raydix.runtime.actors.figures_log import FiguresLog
from raydix.runtime.actors.follower_links import FollowerLinks
from raydix.runtime.actors.grammar_compilers import GrammarCompilers
from raydix.runtime.actors.idle_check import IdleCheck
from raydix.runtime.actors.links.link import Link, send_if_open
from raydix.runtime.actors.links.socket_listener import Listener, listen
from raydix.runtime.actors.metrics_export import MetricsExporter
from raydix.runtime.actors.peer_links import PeerLinks
from raydix.runtime.actors.process import exit_process
from raydix.runtime.actors.scheduler_metrics import SCHEDULER_METRICS
from raydix.runtime.actors.sleep_desk import SleepDesk
from raydix.runtime.actors.traffic import INTERVAL_S as TRAFFIC_INTERVAL_S
from raydix.runtime.actors.traffic import Traffic
from raydix.runtime.actors.turns import Turns
from raydix.runtime.cache.page_key import TOKEN_BYTES
from raydix.runtime.garbage import spare_long_lived_objects
from raydix.runtime.messages.client import FailureKind
from raydix.runtime.messages.hello import Hello, Role
from raydix.runtime.metrics import read_samples
from raydix.runtime.model.grammars.compiling import CompilerSetup
from raydix.runtime.scheduler.core import SchedulerCore
from raydix.runtime.scheduler.events import (
    BackUpL1,
    CompileGrammar,
    DropGrammar,
    Effect,
    EndRequests,
    Event,
    GiveBack,
    KillRank,
    L1Flushed,
    PhaseReached,
    PlanExperts,
    RecordingTold,
    RefuseRequests,
    SendClient,
    SendHost,
    SendNews,
    SendPlan,
    SendTokens,
    TakeAgain,
    TellFollower,
    Tick,
)
from raydix.runtime.scheduler.phase import OrderOutcome, Phase
from raydix.runtime.scheduler.settings import SchedulerSettings

logger = logging.getLogger(__name__)

_SLOW_CLIENT_RETRY_S = 0.02
_CLIENT_EXTRA_BYTES = 256 << 10
"""The bytes of a request's frame besides its prompt; larger frames are refused unread."""
_MAX_KILL_ORDERS = 64
_DRAIN_POLL_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSetup:
    """What a Scheduler starts with; the same for each of its incarnations."""

    settings: SchedulerSettings
    addresses: tuple[str, ...]
    """The addresses at which it listens for GPU actors, HostMemory and clients."""
    secret: bytes = field(repr=False)
    compilers: CompilerSetup
    """What compilers of grammars start with, once there is a grammar."""
    phase: Phase = Phase.AWAKE
    """ASLEEP if the ranks sleep when this incarnation starts."""


class SchedulerActor:
    """Owns: a replica's `SchedulerCore`, and all its links.

    State changes only in a turn, which runs on the actor's event loop and never waits.
    """

    def __init__(
        self,
        *,
        name: str,
        incarnation: int,
        on_fatal: Callable[[], None] = exit_process,
        exporter: MetricsExporter | None = None,
    ) -> None:
        self._name = name
        self._incarnation = incarnation
        self._exporter = exporter
        self._core: SchedulerCore | None = None
        self._turns = Turns[Event, Effect](
            Tick(), self._carry_out, finish=self._finish_turn, on_fatal=on_fatal
        )
        self._planner = ExpertPlanner(self._turns.post)
        self._compilers = GrammarCompilers(self._turns.post)
        self._compiler_setup: CompilerSetup | None = None
        self._traffic_log = FiguresLog(Traffic(), TRAFFIC_INTERVAL_S)
        self._idle_check = IdleCheck()
        self._sleep = SleepDesk(self._turns.post)

        self._listeners: list[Listener] = []
        self._peers = PeerLinks(self._turns.post)
        self._clients = ClientLinks(self._turns.post)
        self._followers = FollowerLinks(self._turns.post)
        self._answers = CoreAnswers(self._turns.take_now)
        self._attached = asyncio.Event()
        self._kill_orders: asyncio.Queue[KillRank] = asyncio.Queue(_MAX_KILL_ORDERS)
        self._cpu_start_s = 0.0

    def __repr__(self) -> str:
        return f"Scheduler({self._name}, incarnation {self._incarnation})"

    async def start(self, setup: SchedulerSetup) -> tuple[str, ...]:
        """Listen; returns the addresses, with the ports that were chosen."""
        self._core = SchedulerCore(setup.settings, setup.phase)
        self._compiler_setup = setup.compilers
        self._turns.start(self._core)
        self._peers.expect(setup.settings.num_lanes * setup.settings.ranks_per_lane)
        self._cpu_start_s = time.thread_time()

        own = Hello(
            role=Role.SCHEDULER,
            name=self._name,
            incarnation=self._incarnation,
            pid=os.getpid(),
        )
        max_client_frame_bytes = TOKEN_BYTES * setup.settings.max_model_len + _CLIENT_EXTRA_BYTES
        for address in setup.addresses:
            self._listeners.append(
                await listen(address, own, setup.secret, self._serve, max_client_frame_bytes)
            )

        spare_long_lived_objects()
        self._traffic_log.start(self.stats)
        if self._exporter is not None:
            self._exporter.start(lambda: read_samples(SCHEDULER_METRICS, self.stats()))
        return tuple(listener.address for listener in self._listeners)

    async def wait_ready(self) -> None:
        """Return once every rank, and HostMemory if there is to be one, is attached."""
        await self._attached.wait()

    async def next_kill(self) -> KillRank:
        """Wait until the core condemns a rank."""
        return await self._kill_orders.get()

    async def fall_asleep(self, with_weights: bool) -> OrderOutcome:
        """Have the engine sleep; returns what has come of it, as `SleepDesk` says."""
        return await self._sleep.fall_asleep(with_weights)

    async def wake(self) -> OrderOutcome:
        """Wake the engine; returns what has come of it, as `SleepDesk` says."""
        return await self._sleep.wake()

    async def next_sleep_order(self) -> GiveBack | TakeAgain:
        """Wait until the ranks are to give memory back, or to take it again."""
        return await self._sleep.next_order()

    def ranks_gave_back(self) -> None:
        """The latest `GiveBack` is carried out."""
        self._sleep.gave_back()

    def stay_asleep(self, with_weights: bool) -> None:
        """The latest `TakeAgain` cannot be carried out."""
        self._sleep.stay_asleep(with_weights)

    def stats(self) -> dict[str, Any]:
        """The core's figures, and what the loop's thread has cost so far."""
        return {
            **self._running_core().stats(),
            "scheduler_cpu_s": time.thread_time() - self._cpu_start_s,
            "num_clients": self._clients.num_connected,
            "num_slow_clients": self._clients.num_slow,
            "num_followers": self._followers.num_connected,
            "incarnation": self._incarnation,
        }

    def explain(self, request_id: str) -> dict[str, Any] | None:
        """Where the prompt of a recent request came from, by token range; None if not known."""
        return self._running_core().explain(RequestId(request_id))

    def prefetch_state(self, request_id: str) -> dict[str, Any] | None:
        """How far a client's prefetch has come, or what has become of it; None if not known."""
        return self._running_core().prefetch_state(RequestId(request_id))

    async def flush(self) -> int:
        """Drop every page of L1 that no request holds, others' events in between.

        Returns the number of pages; flushes that run at once all return their sum.
        """
        self._running_core()
        return await self._answers.flush()

    def record(self, order: RecordingOrder) -> RecordingTold:
        """Carry out an order about a recording of requests, and say what the core has told."""
        self._running_core()
        return self._answers.record(order)

    async def drain(self, timeout_s: float) -> bool:
        """Refuse new requests, wait until the others have ended, and copy to L2 what it is to have.

        Requests that have not ended after `timeout_s` fail, at once if they wait for a wake. Then
        copies have as long again, also those that `write_back` has put off. False: something was
        left.
        """
        core = self._running_core()
        self._turns.post(RefuseRequests())
        await self._wait(lambda: core.is_idle or core.phase is Phase.ASLEEP, timeout_s)

        self._turns.post(EndRequests())
        self._turns.post(BackUpL1())
        return await self._wait(lambda: core.is_idle and core.is_backed_up, timeout_s)

    async def _wait(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until the condition holds, for `timeout_s` at most. Returns whether it does."""
        deadline_s = time.monotonic() + timeout_s
        # Give the loop one pass, in which a turn takes what was posted before.
        await asyncio.sleep(0)
        while not condition() and time.monotonic() < deadline_s:
            await asyncio.sleep(_DRAIN_POLL_S)
        return condition()

    def check(self) -> None:
        """Raise AccountingError if an invariant of the core does not hold."""
        self._running_core().check()

    async def stop(self) -> None:
        """Close every link."""
        if self._exporter is not None:
            await self._exporter.stop()
        self._turns.stop()
        await self._traffic_log.stop()
        await self._planner.stop()
        await self._compilers.stop()
        for listener in self._listeners:
            await listener.close()

    async def _serve(self, link: Link) -> None:
        match link.hello.role:
            case Role.GPU:
                await self._peers.serve_rank(link)
            case Role.HOST_MEMORY:
                await self._peers.serve_host(link)
            case Role.CLIENT:
                await self._clients.serve(link)
            case Role.FOLLOWER:
                await self._followers.serve(link, self._peers.add(link))
                self._peers.remove(link)
            case Role.SCHEDULER | Role.STORAGE | Role.SUPERVISOR:
                logger.warning("%s has no business with the Scheduler", link.hello)
        link.close()

    def _finish_turn(self, now_s: float) -> float | None:
        """Send clients their news and check invariants. Returns when to come back to either."""
        core = self._running_core()
        if core.is_attached:
            self._attached.set()
        is_all_sent = self._clients.send_news()
        news_s = self._followers.send_news(now_s)
        check_s = self._idle_check.advance(core, now_s)
        retry_s = None if is_all_sent else now_s + _SLOW_CLIENT_RETRY_S
        times = (news_s, check_s, retry_s)
        return min((time_s for time_s in times if time_s is not None), default=None)

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case SendClient():
                failure = effect.delta.failure
                if failure is not None and failure.kind is FailureKind.MODEL_FAILED:
                    # Whoever runs the engine can do something about it, unlike its callers.
                    logger.error("%s", failure.message)
                self._clients.add(effect.client_id, effect.delta)
            case SendTokens():
                self._clients.add_tokens(effect.client_id, effect.askings, effect.token_ids)

            case TellFollower():
                self._followers.add(effect)
            case SendNews():
                self._clients.tell(effect.client_id, effect.news)

            case SendPlan():
                for connection in effect.connections:
                    send_if_open(self._peers.get(connection), effect.plan)
            case SendHost():
                send_if_open(self._peers.get(effect.connection), effect.message)

            case KillRank():
                # Whoever ends the rank logs why. Without a Supervisor nobody takes them, so their
                # number is bounded.
                if not self._kill_orders.full():
                    self._kill_orders.put_nowait(effect)
            case PlanExperts():
                experts = self._running_core().settings.experts
                assert experts is not None, "only who shares experts plans them"
                self._planner.start(effect, experts.facts)
            case CompileGrammar():
                assert self._compiler_setup is not None, "the core has started"
                self._compilers.start(effect, self._compiler_setup)
            case DropGrammar():
                self._compilers.drop(effect.key)
            case L1Flushed() | RecordingTold():
                self._answers.hear(effect)
            case GiveBack() | TakeAgain():
                self._sleep.order(effect)
            case PhaseReached():
                self._sleep.reached(effect)
            case _:
                assert_never(effect)

    def _running_core(self) -> SchedulerCore:
        if self._core is None:
            raise AccountingError("the Scheduler is asked for something before its start")
        return self._core
