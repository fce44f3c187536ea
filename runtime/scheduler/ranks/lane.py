"""One lane: the ranks that share an L1, and the requests that wait for them or run."""

from collections.abc import Sequence

from raydix.errors import AccountingError
from raydix.ids import ConnectionId, PageKey, RequestId, TransferId
from raydix.runtime.cache.page_pools import PageIds, num_pages_of, spread
from raydix.runtime.cache.radix_tree import Lock, Match
from raydix.runtime.scheduler.counters import CopyTimes, Counters
from raydix.runtime.scheduler.page_news import PageNews
from raydix.runtime.scheduler.pages.backups import BackupQueue
from raydix.runtime.scheduler.pages.l1 import L1, NO_STEP, duplicates
from raydix.runtime.scheduler.pages.page_needs import (
    PageCounts,
    places_to_take,
    total_pages_to_compute,
)
from raydix.runtime.scheduler.pages.promotion import Promotions
from raydix.runtime.scheduler.pages.prompt_needs import PromptNeeds
from raydix.runtime.scheduler.pages.use_counts import UseCounts
from raydix.runtime.scheduler.queue.waiting import Place, WaitingQueue
from raydix.runtime.scheduler.ranks.decode_rows import DecodeRows
from raydix.runtime.scheduler.ranks.decodes import DecodeBatch
from raydix.runtime.scheduler.ranks.in_flight import InFlight, PlannedRow, StepInFlight
from raydix.runtime.scheduler.ranks.lane_grammars import LaneGrammars
from raydix.runtime.scheduler.ranks.slots import Slots
from raydix.runtime.scheduler.ranks.step_group import StepGroup
from raydix.runtime.scheduler.request.block_table import BlockTable
from raydix.runtime.scheduler.request.chain import Chain
from raydix.runtime.scheduler.request.request import RequestState
from raydix.runtime.scheduler.request.run import Start
from raydix.runtime.scheduler.request.transfers import Backup, Load
from raydix.runtime.scheduler.settings import SchedulerSettings
from raydix.runtime.scheduler.sources.host_view import HostView


class Lane:
    """Owns: the slots of one lane, and which requests wait, compute or decode.

    Its step group owns the ranks, which may step together with those of other lanes.
    """

    def __init__(
        self,
        index: int,
        settings: SchedulerSettings,
        step_group: StepGroup,
        host: HostView,
        uses: UseCounts,
        news: PageNews,
    ) -> None:
        self.index = index
        self.settings = settings
        self.step_group = step_group
        width = settings.ranks_per_lane
        self.ranks = range(index * width, (index + 1) * width)
        self._host, self._uses, self._news = host, uses, news
        self.counters = Counters()
        """What is counted of this lane; the counts go on when its ranks are replaced."""
        self.copy_times = CopyTimes(self.ranks)
        self._reset()

    def _reset(self) -> None:
        """Start with an empty L1, nobody who waits and nothing in flight."""
        self.waiting = WaitingQueue(self.settings)
        self.backups = BackupQueue(self.settings, self._host, self.counters, self._uses)
        self.l1 = L1(self.settings, self.backups, self._news, self.index)
        self.promotions = Promotions(self.settings, self.l1, self.waiting)
        self.in_flight = InFlight(self.ranks)
        self.running: dict[RequestId, RequestState] = {}
        """Admitted requests: those in `batch` decode, those in `prefilling` do not."""
        self.batch = DecodeBatch(
            num_slots=self.settings.max_running_requests,
            page_size=self.settings.page_size,
            publish_tokens=self.settings.publish_tokens,
        )
        self.prefilling: dict[RequestId, RequestState] = {}
        """Admitted requests that load pages, compute their prompt or sample their first token."""
        self._needs = PromptNeeds(self.settings.page_size)
        self._changed_tables: dict[RequestId, RequestState] = {}
        """Decoding requests whose block table on the device is out of date."""
        self._slots = Slots(self.settings.max_running_requests)
        self.grammars = LaneGrammars()

    @property
    def is_attached(self) -> bool:
        """Whether every rank of the step group is there."""
        return self.step_group.is_attached

    @property
    def connections(self) -> tuple[ConnectionId, ...]:
        """The links of the ranks, in order; all are there."""
        return tuple([self.step_group.attached[rank].connection for rank in self.ranks])

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes of the ranks that are there."""
        ranks = self.step_group.attached.items()
        return tuple([attached.pid for rank, attached in ranks if rank in self.ranks])

    @property
    def is_first_of_group(self) -> bool:
        """Whether this lane comes before all other lanes of its step group."""
        return self.index == self.step_group.lanes.start

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing under way will free pages: what is in flight is padding, if anything."""
        quarantined = self.l1.pools.count(lambda pool: pool.num_quarantined)
        return not (self.in_flight.has_own_work or self.in_flight.ready_loads or any(quarantined))

    @property
    def has_nothing_under_way(self) -> bool:
        """Whether there are no steps and copies, and none to come for sessions."""
        return self.in_flight.is_empty and not len(self.promotions)

    @property
    def has_free_slot(self) -> bool:
        """Whether another request can be admitted."""
        return self._slots.num_free > 0

    @property
    def num_tokens_to_compute(self) -> int:
        """Tokens of admitted requests that no acknowledged step has computed."""
        own = sum(request.num_target - request.num_computed for request in self.prefilling.values())
        return own + self.batch.num_tokens_to_compute()

    def prompt_pages_to_come(self) -> PageCounts:
        """Pages that admitted requests still need before all known tokens have one."""
        # Asked for each request that is admitted and each chunk: nothing is counted anew.
        needs = self._needs.all()
        return total_pages_to_compute(self.settings, needs, self.batch.num_pages_to_come())

    def back_up_all(self) -> None:
        """Copy to L2 all that it lacks of L1, which is about to end."""
        self.backups.add_all(self.l1.tree)

    def note_mirrored(self, ready: list[PageKey], dropped: list[PageKey]) -> None:
        """Note that L2 has got and has lost pages, which are given by short keys."""
        self.waiting.pages_came(ready)
        self.backups.note_dropped(dropped)

    def match(self, chain: Chain) -> Match:
        """The longest prefix of a chain in L1."""
        return self.l1.match(chain)

    def start_over(self) -> list[Place]:
        """Start with an empty L1, as a rank of the step group is gone; no request runs here.

        Returns those that waited.
        """
        # Leases of promotions may still be answered: the pages that they were for are gone by then.
        for name in self.promotions.names:
            self.promotions.end(name)
        places = self.waiting.places()
        self.l1.news.cleared()
        self._reset()
        return places

    def start_run(
        self, request: RequestState, lock: Lock, table: BlockTable, start: Start, now_s: float
    ) -> None:
        """Give a request a slot and `lock`; `table` also names pages to load."""
        request.begin_run(self._slots.take(), lock, table, start, now_s)
        self.running[request.request_id] = self.prefilling[request.request_id] = request
        self._needs.note(request)

    def start_decoding(self, request: RequestState) -> None:
        """Let a request that has its first token join the batch."""
        del self.prefilling[request.request_id]
        self._needs.forget(request)
        self.batch.join(request)
        # Its last prompt page may just have made way for the tree's, and no row of its own tells
        # the device any more.
        if request.table.has_unsent:
            self._changed_tables[request.request_id] = request

    def grow_table(self, request: RequestState, num_more: int) -> bool:
        """Take so many more pages for the table of a running request.

        False, and no change, if they are not free yet.
        """
        start = len(request.table)
        stop, checkpoints = start + num_more, request.start.checkpoints
        places = places_to_take(self.settings, start, stop, checkpoints)
        if (page_ids := self.allocate(tuple(map(len, places)))) is None:
            return False
        request.table.extend(spread(page_ids, places, start, num_more))
        if request.is_decoding:
            self.batch.table_grew(request)
            self._changed_tables[request.request_id] = request
        else:
            self._needs.note(request)
        return True

    def plan_row(self, request: RequestState, num_tokens: int) -> int | None:
        """Plan a row for a request that does not decode, as `RequestState.plan_row` does."""
        position = request.plan_row(num_tokens)
        self._needs.note(request)
        return position

    def cut_table(self, request: RequestState, num_pages: int) -> None:
        """Keep the first pages of a running request's table; the others go back."""
        self.l1.release(request.table.cut(num_pages))
        self._needs.note(request)

    def take_changed_tables(self) -> list[RequestState]:
        """Decoding requests whose changed block tables the device is told with the next plan."""
        changed = list(self._changed_tables.values())
        self._changed_tables.clear()
        return changed

    def take_removed_slots(self) -> list[int]:
        """Slots that the device forgets with the next plan."""
        return self._slots.take_removed()

    def give_way(self, num_pages: PageCounts) -> None:
        """End promotions until so many pages are free, will be, or can be evicted."""
        self.promotions.give_way(num_pages)

    def allocate(self, num_pages: PageCounts) -> PageIds | None:
        """Take pages, evicting as needed; promotions give way. None if they are not free yet."""
        self.give_way(num_pages)
        return self.l1.allocate(num_pages)

    def lead(self, request: RequestState, page: int | None) -> None:
        """Let others wait for the page that this request brings next: it is computed once.

        None: it brings none soon, so they are to compute it themselves.
        """
        key = None
        if page is not None and page < request.chain.num_prompt_pages:
            key = request.chain.key(page)
        self.waiting.lead(request.request_id, key)

    def use_pages_of_tree(
        self, request: RequestState, start: int, own: PageIds, kept: PageIds
    ) -> None:
        """Let a running request use pages of the tree where it has others for the same tokens.

        `own`: its pages from `start` on; `kept`: those that the tree keeps.
        """
        twice = duplicates(own, kept)
        if num_pages_of(twice):
            self.l1.release(twice)
            request.table.replace(start, kept)
            # Its next row tells the device, unless it has none of its own.
            if request.is_decoding:
                self._changed_tables[request.request_id] = request

    def release(self, request: RequestState) -> None:
        """Give back the slot and the pages of an admitted request that does not decode.

        Its load goes on. It is about to wait again, or to end.
        """
        lock, slot = request.lock, request.slot
        assert lock is not None, "an admitted request holds its match"
        assert slot is not None, "an admitted request has a slot"
        self.prefilling.pop(request.request_id, None)
        self._needs.forget(request)
        self._changed_tables.pop(request.request_id, None)

        # Most requests end with their last row: their pages are free at once.
        last_step = self.l1.last_step if request.has_rows_in_flight else NO_STEP
        # Windows that its load was to bring lie before the cut, and the tree lacks them.
        if any(request.unhealed):
            self.l1.release(request.table.at(request.unhealed), last_step=last_step)
        private = request.table.cut(lock.num_pages)
        self.l1.unlock(lock, last_step=last_step)
        self.l1.release(private, last_step=last_step)

        if request.is_on_device:
            self._slots.note_told(slot)
        self._slots.give_back(slot)
        del self.running[request.request_id]

    def send(
        self,
        decodes: DecodeRows | None,
        rows: list[PlannedRow],
        transfers: Sequence[Load | Backup],
        *,
        num_tokens: int,
        most_tokens: int,
        now_s: float,
    ) -> int:
        """Send a plan with these rows and copies to every rank; returns its step number."""
        num_repeats = 0 if decodes is None else decodes.num_repeats
        for transfer in transfers:
            self.l1.pools.hold(transfer.page_ids)
        self.in_flight.send_transfers(transfers, now_s)

        flight = StepInFlight(
            step=self.l1.start_steps(1 + num_repeats),
            decodes=decodes,
            rows=rows,
            num_tokens=num_tokens,
            most_tokens=most_tokens,
            is_padding=not (num_tokens or transfers),
            started_s=now_s,
            waiting_ranks=set(self.ranks),
            loads={row.request.load.transfer_id for row in rows if row.request.load is not None},
            repetition=0,
            num_repeats=num_repeats,
        )
        self.in_flight.send_step(flight)
        return flight.step

    def take_done_step(self, now_s: float) -> StepInFlight | None:
        """Take out the oldest plan, if every rank has acknowledged it."""
        flight = self.in_flight.take_done_step(now_s)
        if flight is not None:
            self.l1.pools.settle(flight.step)
        return flight

    def acknowledge_transfer(
        self, transfer_id: TransferId, rank: int, *, is_stale: bool, now_s: float
    ) -> Load | Backup | None:
        """Note that one rank has done a load or backup; returns it once every rank has."""
        transfer = self.in_flight.acknowledge_transfer(
            transfer_id, rank, is_stale=is_stale, now_s=now_s
        )
        if transfer is not None:
            self.l1.pools.unhold(transfer.page_ids)
        return transfer

    def figures_by_rank(self) -> list[dict[str, float]]:
        """What is counted of each rank; all hold the same pages and make the same steps."""
        shared = {**self.counters.figures(), **self.l1.figures()}
        return [{**shared, **figures} for figures in self.copy_times.figures()]

    def check(self) -> None:
        """Raise AccountingError unless the lane's parts agree with its requests."""
        self.waiting.check(self.running.values())
        self.batch.check()
        self.grammars.check(request.grammar for request in self.running.values())

        pools, tree = self.l1.pools, self.l1.tree
        groups = range(pools.num_groups)
        private = tuple(map(self._num_private_pages, groups))
        num_used = pools.count(lambda pool: pool.num_used)
        num_cached = tuple(map(tree.num_cached_pages, groups))
        figures = (
            f"lane {self.index}: pages used per group {num_used}, {num_cached} cached, "
            f"{private} private, {len(self.running)} running, {len(self.promotions)} promotions, "
            f"{tree.num_locks} locks, {len(self.in_flight.transfers)} transfers"
        )
        num_locks = len(self.running) + len(self.promotions)
        self.l1.check(num_private=private, num_locks=num_locks, figures=figures)
        self._check_requests(figures)

        if self.in_flight.ready_loads:
            raise AccountingError(f"a load was leased and neither sent nor given back: {figures}")
        if not self.waiting.requests.keys() >= self.promotions.names_of_requests:
            raise AccountingError(f"a request that does not wait has a promotion: {figures}")
        num_held = tuple(map(self.in_flight.num_held_pages, groups))
        if pools.count(lambda pool: pool.num_held) != num_held:
            raise AccountingError(f"held pages are not those of the transfers in flight: {figures}")

    def _num_private_pages(self, group: int) -> int:
        """Pages of a group that requests and promotions hold and the tree does not."""
        private = sum(each.num_private_pages(group) for each in self.promotions.all())
        for request in self.running.values():
            private += request.table.num_held_from(request.num_held_pages)[group]
            private += len(request.unhealed[group])
        return private

    def _check_requests(self, figures: str) -> None:
        """Check that each running request is where its state says, with a slot of its own."""
        decoding = {name for name, request in self.running.items() if request.is_decoding}
        others = self.running.keys() - decoding
        if len(decoding) != len(self.batch) or others != self.prefilling.keys():
            counts = f"{len(self.batch)} decode and {len(self.prefilling)} prefill"
            raise AccountingError(f"{counts}: {figures}")
        self._needs.check(self.prefilling.values(), figures)
        outdated = {name for name in decoding if self.running[name].table.has_unsent}
        if not outdated <= self._changed_tables.keys():
            raise AccountingError(f"the device is not to hear of {outdated}'s tables: {figures}")
        if self._slots.num_free + len(self.running) != self.settings.max_running_requests:
            raise AccountingError(f"slots are lost: {self._slots.num_free} free; {figures}")
