"""Who waits for which lease."""

from dataclasses import dataclass

from raydix.runtime.scheduler.request.request import RequestState
from raydix.runtime.scheduler.request.state import State
from raydix.runtime.scheduler.request.transfers import Promotion


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseWanted:
    """Who asked for a lease: a promotion of a request, or else the request's run number `run`.

    The request is held itself and not by its name, which a later request may have. The answer is
    stale if the request has ended or is in another run, or if the promotion waits for another lease
    or for none.
    """

    request: RequestState
    run: int
    promotion: Promotion | None = None

    @property
    def is_current(self) -> bool:
        """Whether the run that asked still waits for this lease."""
        return self.request.run == self.run and self.request.state is State.LEASING
