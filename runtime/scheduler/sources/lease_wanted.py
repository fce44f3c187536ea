"""Who waits for which lease."""

from dataclasses import dataclass
from typing import assert_never

from raydix.ids import LeaseId
from raydix.runtime.scheduler.request.request import RequestState
from raydix.runtime.scheduler.request.state import State
from raydix.runtime.scheduler.request.transfers import Promotion


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseWanted:
    """Who asked for a lease: a promotion, or a request for its run number `run`.

    They are held themselves and not by name, which a later request may have. The answer is stale if
    the request has ended or is in another run, or if the promotion waits for another lease or for
    none.
    """

    asker: RequestState | Promotion
    run: int | None
    """None: a promotion has no runs."""

    def is_current(self, lease_id: LeaseId) -> bool:
        """Whether the run or promotion that asked still waits for this lease."""
        match self.asker:
            case Promotion():
                return self.asker.lease_id == lease_id
            case RequestState():
                return self.asker.run == self.run and self.asker.state is State.LEASING
            case _:
                assert_never(self.asker)
