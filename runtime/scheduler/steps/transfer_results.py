"""What an acknowledged load or backup means: pages that can be used, leases and copies that end."""

from typing import assert_never

from raydix.ids import TransferId
from raydix.runtime.messages.plan import TransfersDone
from raydix.runtime.scheduler.counters import Count
from raydix.runtime.scheduler.life.load_users import IsPromoted, Runs, user_of
from raydix.runtime.scheduler.life.requests import Requests
from raydix.runtime.scheduler.life.transitions import Transitions
from raydix.runtime.scheduler.ranks.lane import Lane
from raydix.runtime.scheduler.request.transfers import Backup, Load
from raydix.runtime.scheduler.sources.kv_source import KvSource
from raydix.runtime.scheduler.steps.copy_reports import CopyReports
from raydix.runtime.scheduler.steps.step_results import StepResults


class TransferResults:
    """Takes in the loads and backups that ranks have done."""

    def __init__(
        self,
        *,
        requests: Requests,
        source: KvSource,
        reports: CopyReports,
        steps: StepResults,
        life: Transitions,
    ) -> None:
        self._requests = requests
        self._source = source
        self._reports = reports
        self._steps = steps
        self._life = life

    def take(self, lane: Lane, done: TransfersDone, now_s: float) -> None:
        """One rank has done loads or backups. Each counts once every rank of the lane has."""
        self._reports.note_report(lane, done)
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

    def _finish_load(self, lane: Lane, load: Load, now_s: float) -> None:
        self._reports.learn_load(load, now_s)
        # Even if nobody wants the load any more: no rank reads these host pages now.
        self._source.release_lease(load.lease_id, load.host_connection)
        user = user_of(load, lane, self._requests)
        if user is None:
            return
        if load.is_stale:
            lane.counters.count(Count.STALE_LOADS)
            self._drop_load(lane, user)
        else:
            self._use_load(lane, load, user, now_s)

    def _use_load(self, lane: Lane, load: Load, user: Runs | IsPromoted, now_s: float) -> None:
        self._reports.count_load(lane, load, now_s)
        match user:
            case IsPromoted():
                lane.counters.count(Count.PROMOTED_PAGES, load.num_pages)
                self._life.publish_promoted(lane, user.promotion, now_s)
            case Runs():
                # Its rows on top of the load count from now on.
                deferred = self._life.go_on(lane, user.request, now_s)
                self._steps.apply_deferred(lane, user.request, deferred, now_s)
            case _:
                assert_never(user)

    def _drop_load(self, lane: Lane, user: Runs | IsPromoted) -> None:
        """Do without a load that has read a page which had changed hands."""
        match user:
            case IsPromoted():
                lane.promotions.end(user.promotion.request_id)
            case Runs():
                # Its rows have computed on wrong bytes. None of their tokens has been counted:
                # those wait for the load.
                user.request.forget_sources()
                self._life.requeue(user.request)
            case _:
                assert_never(user)

    def _finish_backup(self, lane: Lane, backup: Backup, now_s: float) -> None:
        lane.backups.finish(backup.keys)
        # The grant ended with that connection, and HostMemory has its pages in quarantine. To
        # commit them now could publish a page that has changed hands.
        if backup.host_connection != self._source.view.connection:
            return
        self._reports.count_backup(lane, backup, now_s)
        for commit in backup.commits():
            self._source.tell(commit)
            self._source.view.keys.add(commit.group, commit.keys)
