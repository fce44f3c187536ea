"""One lane: the ranks that step together, their L1, their queue, and the steps in flight."""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from raydix.errors import AccountingError
from raydix.ids import ConnectionId, PageKey, RequestId, Slot, TransferId
from raydix.runtime.cache.page_key import TOKEN_BYTES
from raydix.runtime.cache.page_pool import PagePool
from raydix.runtime.cache.radix_node import Segment, take_back_hit
from raydix.runtime.cache.radix_tree import Insertion, Lock, Match, RadixTree, Victim
from raydix.runtime.messages.arrays import Int32Array, empty, int32_array
from raydix.runtime.messages.host import KEY_BYTES, MIRROR_KEY_BYTES, split_keys
from raydix.runtime.messages.plan import StepResult
from raydix.runtime.scheduler.decodes import DecodeBatch, DecodeRows
from raydix.runtime.scheduler.request import Phase, RequestState
from raydix.runtime.scheduler.settings import SchedulerSettings
from raydix.runtime.scheduler.transfers import Backup, Load, Promotion
from raydix.runtime.scheduler.waiting import WaitingQueue


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachedRank:
    """A GPU actor that is there: the link that it is attached by, and which process it is."""

    connection: ConnectionId
    incarnation: int
    pid: int


@dataclass(slots=True, kw_only=True)
class PlannedRow:
    """One row of a plan in flight that is not of the decode batch. `output_position`: None if it
    samples nothing.
    """

    request: RequestState
    run: int
    num_computed: int
    output_position: int | None


@dataclass(slots=True, kw_only=True)
class StepInFlight:
    """A plan that was sent and not yet acknowledged by all ranks. `result` is that of the lane's
    first rank.
    """

    step: int
    decodes: DecodeRows | None
    """The rows of the decode batch; they come first."""
    rows: list[PlannedRow]
    num_tokens: int
    """Of all rows."""
    started_s: float
    """When it was sent, or when the step before it ended if that was later."""
    waiting_ranks: set[int]
    num_rows: int
    """Of both kinds."""
    result: StepResult | None = None


MAX_TRANSFER_ID = 2**31 - 1


class Lane:
    """Owns: L1 of one lane (radix tree and page pool), its slots, its waiting and running requests."""

    def __init__(self, index: int, settings: SchedulerSettings) -> None:
        self.index = index
        self.settings = settings
        self.waiting = WaitingQueue(settings)
        self.attached: dict[int, AttachedRank] = {}
        """By rank."""
        self.is_warm = False
        self.armed_until_s = float("-inf")
        """When the step deadline is looked at next."""
        self.reset()

    def reset(self) -> None:
        """Start with an empty L1 and no step in flight: the ranks are gone or new."""
        self.pool = PagePool(self.settings.num_pages)
        self.tree = RadixTree(page_size=self.settings.page_size, eviction=self.settings.eviction)
        self.running: dict[RequestId, RequestState] = {}
        """Admitted requests."""
        self.batch = DecodeBatch(
            num_slots=self.settings.max_running_requests, page_size=self.settings.page_size
        )
        """Those of them that decode, ..."""
        self.prefilling: dict[RequestId, RequestState] = {}
        """... and the others: they wait for pages, compute their prompt or sample their first
        token.
        """
        self.changed_tables: dict[RequestId, RequestState] = {}
        """Decoding requests whose block table on the device is out of date."""
        self.in_flight: dict[int, StepInFlight] = {}
        self.last_step = 0
        self.pool.settle(
            self.last_step
        )  # what is released before the first step need not wait for one
        self.removed_slots: list[int] = []
        self.ready_loads: list[Load] = []
        """Leased, to be sent with the next plan."""
        self.transfers: dict[TransferId, Load | Backup] = {}
        """Sent and not yet acknowledged by all ranks."""
        self.computing: dict[PageKey, RequestId] = {}
        """The next unpublished prompt page of each running request or promotion that computes or
        loads it.
        """
        self.promotions: dict[RequestId, Promotion] = {}
        """Of waiting requests, oldest first."""
        self.dirty: dict[PageKey, int] = {}
        """Pages to be backed up, oldest first: key to page id. An evicted page leaves it."""
        self.inspected: dict[bytes, tuple[PageKey, int]] = {}
        """Pages that go next and that L2 has or is to get: key and page id, by as much of the key
        as the mirror has.
        """
        self.lost: set[bytes] = set()
        """Those of them that L2 has lost since. They are looked at with the next rows: else pages
        would go to and fro for ever between two tiers that are both full."""
        self.backing_up: set[PageKey] = set()
        self.num_uses: dict[PageKey, int] = {}
        """Distinct requests that used a page; kept under `write_through_selective` only."""
        self._num_transfers = 0
        self._free_slots = [Slot(slot) for slot in range(self.settings.max_running_requests)]

    @property
    def ranks(self) -> range:
        """The ranks of this lane."""
        width = self.settings.ranks_per_lane
        return range(self.index * width, (self.index + 1) * width)

    @property
    def is_attached(self) -> bool:
        """Every rank is there."""
        return len(self.attached) == self.settings.ranks_per_lane

    @property
    def num_row_steps(self) -> int:
        """Steps with rows in flight."""
        return sum(flight.num_rows > 0 for flight in self.in_flight.values())

    @property
    def num_loadable_pages(self) -> int:
        """Pages that are free, will be, or can be evicted."""
        return self.pool.num_free + self.pool.num_quarantined + self.tree.num_evictable_pages

    @property
    def num_promoted_pages(self) -> int:
        """Pages that promotions keep; those that several of them keep count for each."""
        return sum(promotion.num_pages for promotion in self.promotions.values())

    @property
    def has_free_slot(self) -> bool:
        """Another request can be admitted."""
        return bool(self._free_slots)

    @property
    def num_tokens_to_compute(self) -> int:
        """Tokens of admitted requests that no acknowledged step has computed."""
        own = sum(request.num_target - request.num_computed for request in self.prefilling.values())
        return own + self.batch.num_tokens_to_compute()

    def prompt_pages_to_come(self) -> int:
        """Pages that admitted requests still need before all known tokens have one."""
        size = self.settings.page_size
        needs = (
            -(-request.num_target // size) - len(request.table)
            for request in self.prefilling.values()
        )
        return sum(max(0, need) for need in needs) + self.batch.num_pages_to_come()

    def admit(self, request: RequestState, lock: Lock, table: list[int]) -> None:
        """A request takes a slot and holds the pages of `lock`, which `table` names with others
        that it got.
        """
        request.begin_run(heapq.heappop(self._free_slots), lock, table)
        self.running[request.request_id] = self.prefilling[request.request_id] = request
        self.note_computing(request)

    def start_decoding(self, request: RequestState) -> None:
        """A request has its first token: it goes on in the batch, unless each of its tokens brings
        more than itself.
        """
        if request.batch is None and request.submit.sampling.num_logprobs is None:
            del self.prefilling[request.request_id]
            self.batch.join(request)
            # Its last prompt page may just have made way for the tree's: no row of its own tells
            # the device any more.
            if request.num_table_sent < len(request.table):
                self.changed_tables[request.request_id] = request

    def extend_table(self, request: RequestState, page_ids: Int32Array) -> None:
        """A running request gets pages."""
        request.table.extend(page_ids.tolist())
        if request.batch is not None and request.slot is not None:
            self.batch.table_grew(request.slot, len(request.table))
            self.changed_tables[request.request_id] = request

    def next_transfer_id(self) -> TransferId:
        """A new id for a load or backup: it travels as int32, so it starts over after 2^31, past
        what is in flight.
        """
        while True:
            self._num_transfers = self._num_transfers % MAX_TRANSFER_ID + 1
            transfer_id = TransferId(self._num_transfers)
            is_taken = transfer_id in self.transfers or any(
                t.transfer_id == transfer_id for t in self.ready_loads
            )
            if not is_taken:
                return transfer_id

    def match(self, request: RequestState) -> Match:
        """The request's longest prefix in L1."""
        return self.tree.match(request.identity, bytes(request.packed))

    def withdraw(self, lock: Lock) -> None:
        """Give back a lock that came to nothing: it is no hit."""
        take_back_hit(lock.node)
        self.tree.unlock(lock)

    def give_way(self, num_pages: int) -> None:
        """End promotions, newest first, until `num_pages` pages are free, will be, or can be
        evicted.
        """
        while self.promotions and self.num_loadable_pages < num_pages:
            self.end_promotion(next(reversed(self.promotions)))

    def allocate(self, num_pages: int) -> tuple[Int32Array | None, list[Victim]]:
        """As `allocate_spare`; promotions give way."""
        self.give_way(num_pages)
        return self.allocate_spare(num_pages)

    def allocate_spare(self, num_pages: int) -> tuple[Int32Array | None, list[Victim]]:
        """Take free pages, evicting as needed. None if they are not free yet; the victims are what
        was evicted.
        """
        victims = (
            self.make_room(num_pages - self.pool.num_free) if num_pages > self.pool.num_free else []
        )
        return self.pool.allocate(num_pages), victims

    def make_room(self, num_pages: int) -> list[Victim]:
        """Evict so that `num_pages` more than now are free, at once or when their quarantine ends."""
        victims = self.tree.evict(max(0, num_pages - self.pool.num_quarantined))
        for victim in victims:
            self._forget(victim)
        return victims

    def flush(self) -> None:
        """Evict everything that no request holds."""
        for victim in self.tree.flush():
            self._forget(victim)

    def _forget(self, victim: Victim) -> None:
        self.pool.release(victim.page_ids[0], after_step=self.last_step)
        if self.dirty or self.num_uses or self.inspected:
            for key in split_keys(victim.keys):
                self.dirty.pop(key, None)
                self.num_uses.pop(key, None)
                self.inspected.pop(key[:MIRROR_KEY_BYTES], None)
                self.lost.discard(key[:MIRROR_KEY_BYTES])

    def publish(self, request: RequestState, now_s: float) -> list[tuple[PageKey, int]]:
        """Put the request's full computed pages into the tree; returns keys and ids of the pages
        that are new there.

        Where the tree already held a page, the request's duplicate is released and its table points
        at the tree's.
        """
        size = self.settings.page_size
        lock = request.lock
        assert lock is not None, "only a running request publishes"
        if request.batch is not None and request.slot is not None:
            request.batch.flush_tokens(request.slot)
        new: list[tuple[PageKey, int]] = []
        num_full = min(request.num_computed, request.num_tokens) // size
        boundary = request.num_prompt // size
        for segment, stop in (
            (Segment.PROMPT, min(boundary, num_full)),
            (Segment.OUTPUT, num_full),
        ):
            start = lock.num_pages
            if start >= stop:
                continue
            own = int32_array(request.table[start:stop])
            insertion = self._insert(request, lock, own, segment, now_s)
            self._take_over(request, start, own, insertion.page_ids[0])
            for index in range(insertion.num_existing_pages, stop - start):
                new.append((request.key(start + index, size), int(own[index])))
        self.note_computing(request)
        return new

    def publish_part(self, promotion: Promotion, request: RequestState, now_s: float) -> None:
        """Put the loaded part of a promotion into the tree; what the tree held already is released."""
        insertion = self._insert(request, promotion.lock, promotion.part, Segment.PROMPT, now_s)
        promotion.part = promotion.part[promotion.part != insertion.page_ids[0]]
        self.drop_part(promotion)

    def _insert(
        self,
        request: RequestState,
        lock: Lock,
        page_ids: Int32Array,
        segment: Segment,
        now_s: float,
    ) -> Insertion:
        """Enter the request's pages that follow `lock` into the tree."""
        size = self.settings.page_size
        start, stop = lock.num_pages, lock.num_pages + len(page_ids)
        keys = request.keys(stop, size)[start * KEY_BYTES :]

        insertion = self.tree.insert(
            lock,
            bytes(request.packed[start * size * TOKEN_BYTES : stop * size * TOKEN_BYTES]),
            (page_ids,),
            keys,
            segment=segment,
            priority=request.submit.priority,
            now_s=now_s,
        )

        for key in split_keys(keys):
            self.waiting.page_came(key)
        return insertion

    def _take_over(
        self, request: RequestState, start: int, own: Int32Array, kept: Int32Array
    ) -> None:
        differs = own != kept
        if differs.any():
            self.pool.release(own[differs], after_step=self.last_step)
            request.table[start : start + len(kept)] = kept.tolist()
            request.num_table_sent = min(request.num_table_sent, start)
            if request.batch is not None:
                self.changed_tables[request.request_id] = request

    def note_computing(self, request: RequestState) -> None:
        """Tell others which page the request computes or loads next, so that a shared prefix is
        computed once.
        """
        if (
            request.computing_key is not None
            and self.computing.get(request.computing_key) == request.request_id
        ):
            del self.computing[request.computing_key]
        request.computing_key = None
        page = request.num_held_pages
        if (
            request.phase is not Phase.ENDED
            and page < request.num_prompt // self.settings.page_size
        ):
            key = request.key(page, self.settings.page_size)
            if key not in self.computing:
                self.computing[key] = request.request_id
                request.computing_key = key
        if request.computing_key is None:
            self.waiting.leader_stopped(request.request_id)

    def release(self, request: RequestState, phase: Phase) -> None:
        """Give back everything that an admitted request holds, except its load, which `transfers`
        keeps.
        """
        assert request.lock is not None
        assert request.slot is not None
        if request.batch is not None:
            request.batch.leave(request)
        self.prefilling.pop(request.request_id, None)
        self.changed_tables.pop(request.request_id, None)
        if (
            request.computing_key is not None
            and self.computing.get(request.computing_key) == request.request_id
        ):
            del self.computing[request.computing_key]
        self.waiting.leader_stopped(request.request_id)
        private = request.table[request.lock.num_pages :]
        self.tree.unlock(request.lock)
        if private:
            self.pool.release(int32_array(private), after_step=self.last_step)
        if request.is_on_device:
            self.removed_slots.append(request.slot)
        heapq.heappush(self._free_slots, request.slot)
        del self.running[request.request_id]
        request.end_run(phase)

    def drop_part(self, promotion: Promotion) -> None:
        """A promotion's part will not come, or is there: what it still holds outside the tree goes
        back.
        """
        if len(promotion.part):
            self.pool.release(promotion.part, after_step=self.last_step)
        promotion.part = empty()
        promotion.lease_id = promotion.load = None
        if self.computing.get(promotion.first_key) == promotion.request_id:
            del self.computing[promotion.first_key]
        self.waiting.leader_stopped(promotion.request_id)

    def end_promotion(self, request_id: RequestId) -> None:
        """The request runs, is gone, or others need the pages. What was published stays cached."""
        promotion = self.promotions.pop(request_id, None)
        if promotion is not None:
            self.drop_part(promotion)
            self.withdraw(promotion.lock)

    def sent_transfers(self) -> Iterator[Load | Backup]:
        """Transfers in flight."""
        return iter(self.transfers.values())

    def check(self) -> None:
        """Raise AccountingError unless tree and pool agree with the requests that hold their pages."""
        self.pool.check()
        self.tree.check()
        self.waiting.check()
        self.batch.check()
        private = sum(len(r.table) - r.num_held_pages for r in self.running.values())
        private += sum(len(promotion.part) for promotion in self.promotions.values())
        figures = (
            f"lane {self.index}: {self.pool.num_used} pages used, {self.tree.num_cached_pages} "
            f"cached, "
            f"{private} private, {len(self.running)} running, {len(self.promotions)} promotions, "
            f"{self.tree.num_locks} locks, "
            f"{len(self.transfers)} transfers"
        )
        if self.pool.num_used != self.tree.num_cached_pages + private:
            raise AccountingError(
                f"pages in use are neither cached nor held by a request: {figures}"
            )
        if self.tree.num_locks != len(self.running) + len(self.promotions):
            raise AccountingError(
                f"locks do not belong to running requests and promotions: {figures}"
            )
        decoding = {name for name, request in self.running.items() if request.batch is not None}
        if (
            len(decoding) != len(self.batch)
            or self.running.keys() - decoding != self.prefilling.keys()
        ):
            raise AccountingError(
                f"{len(self.batch)} decode and {len(self.prefilling)} prefill: {figures}"
            )
        outdated = {
            name
            for name in decoding
            if self.running[name].num_table_sent < len(self.running[name].table)
        }
        if not outdated <= self.changed_tables.keys():
            raise AccountingError(
                f"the device is not to hear of {len(outdated)} changed block tables: {figures}"
            )
        if not self.promotions.keys() <= self.waiting.requests.keys():
            raise AccountingError(f"a request that does not wait has a promotion: {figures}")
        held = [t.page_ids for t in self.transfers.values()]
        if self.pool.num_held != (len(np.unique(np.concatenate(held))) if held else 0):
            raise AccountingError(f"held pages are not those of the transfers in flight: {figures}")
        if len(self._free_slots) + len(self.running) != self.settings.max_running_requests:
            raise AccountingError(f"slots are lost: {len(self._free_slots)} free; {figures}")
