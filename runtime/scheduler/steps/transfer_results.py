"""What an acknowledged load or backup means: pages that can be used, leases and copies that end."""

from typing import assert_never

from raydix.ids import TransferId
from raydix.runtime.messages.plan import TransfersDone
from raydix.runtime.scheduler.counters import Count, Counters, Prediction, Timing, Timings
from raydix.runtime.scheduler.life.requests import Requests
from raydix.runtime.scheduler.life.transitions import Transitions
from raydix.runtime.scheduler.life.trials import Trials
from raydix.runtime.scheduler.ranks.lane import Lane
from raydix.runtime.scheduler.rates import Rates
from raydix.runtime.scheduler.request.request import RequestState
from raydix.runtime.scheduler.request.transfers import Backup, Load, Promotion
from raydix.runtime.scheduler.sources.kv_source import KvSource
from raydix.runtime.scheduler.steps.step_results import StepResults, accept_time


class TransferResults:
    """Takes in the loads and backups that ranks have done."""

    def __init__(
        self,
        *,
        requests: Requests,
        source: KvSource,
        rates: Rates,
        trials: Trials,
        steps: StepResults,
        life: Transitions,
        counters: Counters,
        timings: Timings,
    ) -> None:
        self._requests = requests
        self._source = source
        self._rates = rates
        self._trials = trials
        self._steps = steps
        self._life = life
        self._counters = counters
        self._timings = timings

    def take(self, lane: Lane, done: TransfersDone, now_s: float) -> None:
        """One rank has done loads or backups. Each counts once every rank of the lane has."""
        if accept_time(lane, done.seconds):
            lane.copy_times.add(done.rank, done.seconds)
            if done.num_bytes:
                _note_copied(lane, done)

        stale = set(done.stale_transfer_ids.tolist())
        for number in done.transfer_ids.tolist():
            transfer = lane.acknowledge_transfer(
                TransferId(number), done.rank, is_stale=number in stale, now_s=now_s
            )
            match transfer:
                case Load():
                    self._finish_load(lane, transfer, now_s)
                case Backup():
                    self._finish_backup(lane, transfer, now_s)
                case None:
                    pass
                case _:
                    assert_never(transfer)

    def _learn_load(self, load: Load, now_s: float) -> None:
        """Learn how long a load takes from its slowest rank: the quick ones do not refute that."""
        if load.copied is not None:
            num_bytes, seconds = load.copied
            predicted_s = self._rates.load.predict_s(num_bytes, now_s)
            self._counters.count_prediction(Prediction.LOAD, predicted_s, seconds)
            self._rates.load.observe(num_bytes, seconds, now_s)

    def _finish_load(self, lane: Lane, load: Load, now_s: float) -> None:
        self._learn_load(load, now_s)
        # First of all, and even if nobody wants the load any more: no rank reads these host pages
        # now.
        self._source.release_lease(load.lease_id, load.host_connection)
        self._trials.note_load(load.lease_id, load.age_s(now_s))
        request = self._requests.living.get(load.request_id)
        promotion = lane.promotions.of_load(load)
        is_for_run = request is not None and request.load is load
        if request is None or not (is_for_run or promotion is not None):
            return

        if load.is_stale:
            lane.counters.count(Count.STALE_LOADS)
            self._drop_load(lane, request, promotion)
            return
        lane.counters.count(Count.LOADED_PAGES, load.num_pages)
        self._timings.observe(Timing.LOAD, load.age_s(now_s))
        if promotion is not None:
            lane.counters.count(Count.PROMOTED_PAGES, load.num_pages)
            self._publish_part(lane, request, promotion, now_s)
        else:
            self._run_on_load(lane, request, now_s)

    def _drop_load(self, lane: Lane, request: RequestState, promotion: Promotion | None) -> None:
        """Do without a load that has read a page which had changed hands."""
        if promotion is not None:
            lane.promotions.end(request.request_id)
        else:
            # Its rows have computed on wrong bytes. None of their tokens has been counted: those
            # wait for the load.
            request.forget_sources()
            self._life.requeue(request)

    def _publish_part(
        self, lane: Lane, request: RequestState, promotion: Promotion, now_s: float
    ) -> None:
        lane.promotions.publish(promotion, request, now_s)
        lane.waiting.wake(request)

    def _run_on_load(self, lane: Lane, request: RequestState, now_s: float) -> None:
        """Count the rows that a running request had on top of its load, which is done."""
        deferred = self._life.go_on(lane, request, now_s)
        self._steps.apply_deferred(lane, request, deferred, now_s)

    def _finish_backup(self, lane: Lane, backup: Backup, now_s: float) -> None:
        lane.backups.finish(backup.keys)
        # The grant ended with that connection, and HostMemory has its pages in quarantine. To
        # commit them now could publish a page that has changed hands.
        if backup.host_connection != self._source.view.connection:
            return
        lane.counters.count(Count.BACKED_UP_PAGES, backup.num_pages)
        self._timings.observe(Timing.BACKUP, backup.age_s(now_s))
        for commit in backup.commits():
            self._source.tell(commit)
            self._source.view.keys.add(commit.group, commit.keys)


def _note_copied(lane: Lane, done: TransfersDone) -> None:
    """Give the time of loads that a rank reports together to the first of them."""
    transfers = (lane.in_flight.transfers.get(number) for number in done.transfer_ids.tolist())
    first = next((each for each in transfers if isinstance(each, Load)), None)
    if first is not None:
        first.note_copied(done.num_bytes, done.seconds)
