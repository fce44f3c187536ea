"""What a rank carries out next: the plans that come, and between them the last one once more."""

from raydix.errors import AccountingError
from raydix.runtime.actors.links.link import BlockingLink
from raydix.runtime.actors.step_results import StepResults
from raydix.runtime.messages.plan import StepPlan
from raydix.runtime.scheduler.ranks.standing_plan import StandingPlan


class PlanFeed:
    """Owns: the plan that stands on a rank. One thread asks for plans."""

    def __init__(self, rank: int, results: StepResults) -> None:
        self._rank = rank
        self._results = results
        self._standing = StandingPlan(rank)

    def next(self, link: BlockingLink) -> StepPlan:
        """The next plan that comes, or the one that stands once more, if none has come.

        Raises LinkClosed as `BlockingLink.receive` does, and AccountingError for anything but the
        plan that is due.
        """
        if self._standing.may_repeat:
            # Whatever is enqueued by then, a plan that comes has to wait for.
            has_come = self._results.wait_until_few(link)
            if not has_come:
                return self._standing.repeat()

        plan = link.receive()
        if not isinstance(plan, StepPlan):
            raise AccountingError(
                f"rank {self._rank} received a {type(plan).__name__}; expected a StepPlan"
            )
        taken = self._standing.take(plan)
        if taken.left_out is not None:
            self._results.leave_out(link, taken.left_out)
        return taken.plan

    def forget(self) -> None:
        """Forget the plan that stands: its Scheduler is gone, and the next one counts anew."""
        self._standing.forget()
