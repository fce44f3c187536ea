"""What reports of copies teach about how long loads take, and what is counted of each copy."""

from raydix.runtime.messages.plan import TransfersDone
from raydix.runtime.scheduler.counters import Count, Counters, Prediction, Timing, Timings
from raydix.runtime.scheduler.life.trials import Trials
from raydix.runtime.scheduler.ranks.lane import Lane
from raydix.runtime.scheduler.rates import Rates
from raydix.runtime.scheduler.request.transfers import Backup, Load
from raydix.runtime.scheduler.steps.step_results import accept_time


class CopyReports:
    """Learns from the loads and backups that ranks have done, whoever wanted them."""

    def __init__(self, rates: Rates, trials: Trials, counters: Counters, timings: Timings) -> None:
        self._rates = rates
        self._trials = trials
        self._counters = counters
        self._timings = timings

    def note_report(self, lane: Lane, done: TransfersDone) -> None:
        """Note the time that a rank has taken; that of its loads is given to the first of them."""
        if not accept_time(lane, done.seconds):
            return
        lane.copy_times.add(done.rank, done.seconds)
        if done.num_bytes:
            transfers = (lane.in_flight.transfers.get(n) for n in done.transfer_ids.tolist())
            first = next((each for each in transfers if isinstance(each, Load)), None)
            if first is not None:
                first.note_copied(done.num_bytes, done.seconds)

    def learn_load(self, load: Load, now_s: float) -> None:
        """Learn how long a load takes from its slowest rank: the quick ones do not refute that."""
        if load.copied is not None:
            num_bytes, seconds = load.copied
            predicted_s = self._rates.load.predict_s(num_bytes, now_s)
            self._counters.count_prediction(Prediction.LOAD, predicted_s, seconds)
            self._rates.load.observe(num_bytes, seconds, now_s)
        self._trials.note_load(load.lease_id, load.age_s(now_s))

    def count_load(self, lane: Lane, load: Load, now_s: float) -> None:
        """Count a load that somebody has used."""
        lane.counters.count(Count.LOADED_PAGES, load.num_pages)
        self._timings.observe(Timing.LOAD, load.age_s(now_s))

    def count_backup(self, lane: Lane, backup: Backup, now_s: float) -> None:
        """Count a backup that L2 has."""
        lane.counters.count(Count.BACKED_UP_PAGES, backup.num_pages)
        self._timings.observe(Timing.BACKUP, backup.age_s(now_s))
