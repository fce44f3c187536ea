"""The threads of a rank that serves: they carry out the Scheduler's plans on its device.

The launcher thread reads plans and enqueues their work. The completer thread waits for steps and
reports them. The reporter thread reports loads and backups, also when no step runs.
"""

import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from raydix.errors import AccountingError
from raydix.runtime.actors.arena_copies import ArenaCopies
from raydix.runtime.actors.gpu_model import Experts, GpuModel, NoExperts, StepTimer
from raydix.runtime.actors.link_watch import LinkWatch
from raydix.runtime.actors.links.link import BlockingLink, LinkClosed, send_unless_closed
from raydix.runtime.actors.plan_feed import PlanFeed
from raydix.runtime.actors.redial import RECONNECT_S, Dial, redial
from raydix.runtime.actors.step_results import EnqueuedStep, StepResults
from raydix.runtime.actors.transfer_reports import TransferReports
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.plan import StepPlan

logger = logging.getLogger(__name__)

FINISH_S = 5.0
"""How long a stopping rank waits for its steps in flight, which a peer may never have received."""


class RankThreads:
    """Owns: one prepared model, the state of its requests, and the link to the Scheduler.

    The launcher thread alone changes the first two. It serves from `start` to `stop`, once.
    """

    def __init__(
        self,
        label: str,
        rank: int,
        model: GpuModel,
        copies: ArenaCopies,
        *,
        patience_s: float,
        on_fatal: Callable[[], None],
    ) -> None:
        """`label`: what the log calls the actor. `patience_s`: see `LinkWatch`.

        A thread that cannot go on logs why and calls `on_fatal`.
        """
        self._label = label
        self.model = model
        self._copies = copies
        self._patience_s = patience_s
        self._on_fatal = on_fatal
        self._experts: Experts = NoExperts()

        self._link: BlockingLink | None = None
        self.is_stopping = threading.Event()
        self.threads: list[threading.Thread] = []
        self._results = StepResults(rank)
        self._plans = PlanFeed(rank, self._results)
        self._reports = TransferReports(rank)
        self._slots: set[int] = set()
        """The slots that hold a request; the launcher alone knows them."""
        self._rehearsed = threading.Event()
        self._num_links = 0

    @property
    def reports(self) -> TransferReports:
        """The reports of copies, to which their engine adds."""
        return self._reports

    def start(self, dial: Dial[BlockingLink]) -> None:
        """Follow the Scheduler that `dial` reaches, and each that follows it."""
        if self.threads:
            raise AccountingError(f"{self._label} is started twice")

        self._experts = self.model.make_experts(self.copies_failed)
        bodies = {"launcher": self._launch, "completer": self._complete, "reporter": self._report}
        for name, body in bodies.items():
            arguments = (body, dial) if body == self._launch else (body,)
            self.threads.append(
                threading.Thread(target=self._guard, args=arguments, name=name, daemon=True)
            )

        for thread in self.threads:
            thread.start()

    def wait_rehearsed(self) -> None:
        """Return once nothing is left that would take longer for the first time."""
        self._rehearsed.wait()

    def drain(self) -> None:
        """Wait until every step and copy received so far has ended, and been reported."""
        self._copies.drain()
        self._experts.drain()
        self._reports.flush()
        self._results.wait_reported()

    def stats(self) -> dict[str, Any]:
        """Counters since these threads were started, and whether the Scheduler is connected."""
        return {
            "connected": self._link is not None,
            "num_links": self._num_links,
            "num_steps": self._results.num_reported,
            "compute_s": self._results.compute_s,
            "num_running": len(self._slots),
            **self._reports.stats(),
            **self.model.stats(),
        }

    def stop(self) -> None:
        """Close the link, finish what is in flight and end the threads, whatever peers do."""
        self._hang_up()
        give_up_s = time.monotonic() + FINISH_S
        for thread in self.threads:
            thread.join(max(0.0, give_up_s - time.monotonic()))
        # A peer that stopped before it received the last plan leaves this rank stuck in it.
        self.model.close()
        self._copies.abandon_peers()
        for thread in self.threads:
            thread.join()

    def rest(self) -> None:
        """Close the link and end the threads, as nothing is in flight; the model is sound."""
        self._hang_up()
        for thread in self.threads:
            thread.join()

    def close_experts(self) -> None:
        """End copies of experts."""
        self._experts.close()

    def _hang_up(self) -> None:
        self.is_stopping.set()
        # Read once: the launcher may clear it meanwhile.
        if (link := self._link) is not None:
            link.close()

    def _launch(self, dial: Dial[BlockingLink]) -> None:
        self.model.enter_thread()
        try:
            self.model.rehearse()
            # Forgets what warming up has counted, and loads the kernels that this takes.
            self._experts.restore()
            self._rehearsed.set()
            stop = self.is_stopping
            while (link := redial(dial, stop, "the Scheduler", RECONNECT_S)) is not None:
                self._follow_watched(link)
                self._forget_requests()
        finally:
            # Nobody waits for a rehearsal that has failed.
            self._rehearsed.set()
            self._results.close()
            self._reports.close()

    def _follow_watched(self, link: BlockingLink) -> None:
        """Follow a link to its end, then finish all work that it brought.

        The next Scheduler must find nothing in motion. But work may never end: if a peer has not
        received the last plan, or the device of a rank alone hangs and no Scheduler minds that.
        Then `LinkWatch` ends this process, and all ranks that step together start afresh.
        """
        with LinkWatch(link, lambda: self._results.num_reported, self._patience_s, self._give_up):
            self._follow(link)
            self.drain()

    def _follow(self, link: BlockingLink) -> None:
        """Carry out a Scheduler's plans until its link ends."""
        self._num_links += 1
        self._link = link
        try:
            # A shutdown that looked for the link just before it was set has not closed it.
            while not self.is_stopping.is_set():
                self._carry_out(self._plans.next(link), link)
        except LinkClosed as closed:
            logger.info("%s lost its Scheduler: %s", self._label, closed)
        finally:
            self._link = None
            link.close()

    def _carry_out(self, plan: StepPlan, link: BlockingLink) -> None:
        self.model.runner.apply(plan)
        self._experts.apply(plan)
        # Removals come first: a plan may give the same slot to another request.
        self._slots.difference_update(plan.removed_slots.tolist())
        self._slots.update(int(request.slot) for request in plan.added)

        # Rows wait for what loads bring. Of backups they would wait for the beginning alone.
        if len(plan.loads):
            self._start_copies(plan)
        step = self._run_rows(plan, link)
        if len(plan.backups) and not len(plan.loads):
            self._start_copies(plan)
        self._results.add(step)

    def _start_copies(self, plan: StepPlan) -> None:
        """Begin a plan's copies: what is backed up was computed by steps that have been reported.

        Were backups to wait for those that are enqueued, a request that goes on elsewhere would
        wait for two chunks of others' prompts.
        """
        with self.model.beside_steps():
            self._copies.start(plan)

    def _run_rows(self, plan: StepPlan, link: BlockingLink) -> EnqueuedStep:
        if not (len(plan.row_slots) or plan.group_tokens.any()):
            return EnqueuedStep(plan.step, link, None, None)
        timer = self.model.make_timer()
        timer.begin()
        output = self.model.runner.execute(plan, partial(self._wait_layer, timer))
        timer.end()
        return EnqueuedStep(plan.step, link, output, timer, self._experts.after_step())

    def _wait_layer(self, timer: StepTimer, transfer_id: int, layer: int) -> None:
        """Wait for a load, which does not count as the step's own time."""
        if self._copies.engine is not None:
            timer.pause()
            self._copies.engine.wait_layer(transfer_id, layer)
            timer.resume()

    def _forget_requests(self) -> None:
        """Drop every request, because the Scheduler that knew them is gone."""
        if self._slots:
            self.model.runner.apply(
                StepPlan(step=0, removed_slots=int32_array(sorted(self._slots)))
            )
            self._slots.clear()
        # The next Scheduler knows only where experts were at the start.
        self._experts.restore()
        self._plans.forget()

    def _complete(self) -> None:
        self.model.enter_thread()
        self._results.report(self._experts)

    def _report(self) -> None:
        while (message := self._reports.take()) is not None:
            # Read once: the launcher may clear it meanwhile.
            if (link := self._link) is not None:
                send_unless_closed(link, message)
            self._reports.sent()

    def _guard(self, body: Callable[..., None], *arguments: Any) -> None:
        try:
            body(*arguments)
        except Exception:
            if self.is_stopping.is_set():
                logger.info("%s stops within a step", self._label, exc_info=True)
            else:
                logger.exception("%s cannot go on", self._label)
            self._give_up()

    def copies_failed(self, error: BaseException) -> None:
        """End this process, as a copy has failed and others may be wrong."""
        logger.error("%s cannot copy: %s", self._label, error)
        self._give_up()

    def _give_up(self) -> None:
        # Read once: the launcher may clear it meanwhile.
        if (link := self._link) is not None:
            link.close()
        self._on_fatal()
