"""What the engine as a whole is told to do: to flush L1, to stop, to sleep and to wake."""

from collections.abc import Sequence
from typing import assert_never

from raydix.runtime.config.policies import WritePolicy
from raydix.runtime.scheduler.events import (
    BackUpL1,
    EndRequests,
    EngineOrder,
    FallAsleep,
    FlushL1,
    RanksGaveBack,
    RefuseRequests,
    WakeUp,
)
from raydix.runtime.scheduler.l1_flush import L1Flush
from raydix.runtime.scheduler.life.endings import Endings
from raydix.runtime.scheduler.life.requests import Requests
from raydix.runtime.scheduler.ranks.lane import Lane
from raydix.runtime.scheduler.sleep import Sleep


class Orders:
    """Takes orders for the whole engine, which come from no client, rank or HostMemory."""

    def __init__(
        self,
        *,
        flush: L1Flush,
        requests: Requests,
        endings: Endings,
        lanes: Sequence[Lane],
        sleep: Sleep,
    ) -> None:
        self._flush = flush
        self._requests = requests
        self._endings = endings
        self._lanes = lanes
        self._sleep = sleep

    def take(self, order: EngineOrder, now_s: float) -> None:
        """Carry an order out, or begin to."""
        match order:
            case FlushL1():
                self._flush.start(now_s)
            case RefuseRequests():
                self._requests.close()
            case EndRequests():
                self._endings.end_all()
            case BackUpL1():
                self._back_up_at_end()
            case FallAsleep() | RanksGaveBack() | WakeUp():
                self._sleep_or_wake(order, now_s)
            case _:
                assert_never(order)

    def _sleep_or_wake(self, order: FallAsleep | RanksGaveBack | WakeUp, now_s: float) -> None:
        match order:
            case FallAsleep():
                self._sleep.fall_asleep(with_weights=order.with_weights, now_s=now_s)
            case RanksGaveBack():
                self._sleep.note_given_back()
            case WakeUp():
                self._sleep.wake(now_s)

    def _back_up_at_end(self) -> None:
        """Copy what `write_back` has put off; under other policies all is as it is to be."""
        for lane in self._lanes:
            if lane.settings.write_policy is WritePolicy.WRITE_BACK:
                lane.back_up_all()
