"""L3 to L2 to L1 as a pipeline: what has come for a waiting request is loaded ahead of the rest.

So is what L2 has of a session that is about to go on, as long as nobody waits: it goes first.

And so is what another engine computes of a request that is to go on here. Room for all of it is
taken beforehand, and the parts are loaded as that engine commits them.

A promotion publishes each part in the tree once it is loaded, so that the request, when its wait
ends, finds a longer match in L1. It holds a bounded share of L1 and gives way to whoever needs its
pages.

A prompt that is longer than the room in L2 for what L3 brings goes through it by turns: once that
is full the lookup has ended, all that has come goes on to L1, and the rest is looked up.
"""

from raydix.ids import RequestId
from raydix.runtime.cache.page_key import split_keys
from raydix.runtime.cache.page_pools import PageIds, no_pages
from raydix.runtime.cache.radix_node import Segment
from raydix.runtime.cache.radix_tree import Lock
from raydix.runtime.scheduler.pages.l1 import L1, duplicates
from raydix.runtime.scheduler.pages.page_needs import PageCounts
from raydix.runtime.scheduler.queue.waiting import WaitingQueue
from raydix.runtime.scheduler.request.chain import Chain
from raydix.runtime.scheduler.request.request import RequestState
from raydix.runtime.scheduler.request.returning import Returning
from raydix.runtime.scheduler.request.transfers import Load, Promotion
from raydix.runtime.scheduler.settings import SchedulerSettings

_L1_PAGES_PER_PROMOTED_PAGE = 2
"""The promotions of a lane together keep at most one of so many pages of its L1."""


def _min_part_pages(settings: SchedulerSettings) -> int:
    """Pages of the smallest part whose copies are large enough, without WINDOW groups."""
    pairs = zip(settings.loaded_bytes, settings.reaches, strict=True)
    page_bytes = sum(num_bytes for num_bytes, reach in pairs if reach is None)
    return -(-settings.min_part_bytes // max(1, page_bytes))


class Promotions:
    """Owns: what is loaded ahead on one lane, for requests that wait and what is to come."""

    def __init__(self, settings: SchedulerSettings, l1: L1, waiting: WaitingQueue) -> None:
        self._settings = settings
        self._min_part_pages = _min_part_pages(settings)
        self._l1 = l1
        self._waiting = waiting
        self._promotions: dict[RequestId, Promotion] = {}
        """The promotions by request, oldest first."""

    def __len__(self) -> int:
        return len(self._promotions)

    @property
    def names(self) -> list[RequestId]:
        """The names of those with a promotion: requests, and what is to come."""
        return list(self._promotions)

    @property
    def names_of_requests(self) -> set[RequestId]:
        """Requests that wait here and have a promotion."""
        return {each.request_id for each in self.all() if each.is_for_waiting_request}

    @property
    def reservations(self) -> list[Promotion]:
        """The promotions for requests that other engines begin."""
        return [each for each in self._promotions.values() if each.reserved is not None]

    @property
    def num_pages(self) -> int:
        """The pages that promotions keep; a page that several of them keep counts for each."""
        return sum(promotion.num_pages for promotion in self._promotions.values())

    def num_kept_pages(self) -> PageCounts:
        """Per KV group, the most pages that all promotions together keep."""
        promotions = self._promotions.values()
        return tuple(
            [
                sum(promotion.num_kept_pages(reach) for promotion in promotions)
                for reach in self._settings.reaches
            ]
        )

    def all(self) -> list[Promotion]:
        """All promotions of the lane, oldest first."""
        return list(self._promotions.values())

    def get(self, name: RequestId) -> Promotion | None:
        """The promotion of a request; None if it has none."""
        return self._promotions.get(name)

    def of_load(self, load: Load) -> Promotion | None:
        """The promotion that waits for this load."""
        promotion = self._promotions.get(load.request_id)
        return promotion if promotion is not None and promotion.load is load else None

    def start(self, request: RequestState, lock: Lock, num_l2_pages: int) -> Promotion | None:
        """Take L1 pages for what follows `lock` in L2, if that is enough for large copies.

        The promotion takes over `lock`; None: there is none.
        """
        if self.has_part(request):
            return None
        if self.num_left(request, lock) < num_l2_pages:
            self._end_returns()
        wanted = min(num_l2_pages, self._most_pages(request) - lock.num_pages)
        for reservation in reversed(self.reservations):
            if self.num_left(request, lock) >= wanted:
                break
            # This request is here, and that one is yet to come.
            self.end(reservation.request_id)
        num_pages = min(num_l2_pages, self.num_left(request, lock))
        if num_pages < (1 if request.prefetch.is_halted else max(1, self._min_part_pages)):
            return None
        part = self._take_part(num_pages)
        if part is None:
            return None

        self.end(request.request_id)
        return self._begin(
            Promotion(
                request_id=request.request_id,
                chain=request.chain,
                lane=request.lane,
                priority=request.submit.priority,
                lock=lock,
                part=part,
                lease_id=None,
            )
        )

    def start_return(
        self, name: RequestId, session: Returning, lane: int, lock: Lock, num_pages: int
    ) -> Promotion | None:
        """Take L1 pages for what follows `lock` in L2 of a session that is about to go on.

        The promotion takes over `lock`; None: there is none.
        """
        if name in self._promotions:
            return None
        part = self._take_part(num_pages)
        if part is None:
            return None
        return self._begin(
            Promotion(
                request_id=name,
                chain=session.chain,
                lane=lane,
                priority=session.priority,
                lock=lock,
                part=part,
                lease_id=None,
                returns=session.rests,
            )
        )

    def reserve(
        self, name: RequestId, chain: Chain, lane: int, priority: int, lock: Lock, num_pages: int
    ) -> bool:
        """Take L1 pages for what is to come behind `lock` of a request that another engine begins.

        True: the promotion has taken over `lock`. False: there is no room.
        """
        reserved = self._take_part(num_pages)
        if reserved is None:
            return False
        self._promotions[name] = Promotion(
            request_id=name,
            chain=chain,
            lane=lane,
            priority=priority,
            lock=lock,
            part=no_pages(len(reserved)),
            lease_id=None,
            reserved=reserved,
        )
        return True

    def begin_part(self, promotion: Promotion, num_l2_pages: int) -> bool:
        """Take the next part of what is reserved, if L2 has enough of it for large copies."""
        num_pages = min(num_l2_pages, promotion.num_reserved_pages)
        is_last = num_pages == promotion.num_reserved_pages
        if not num_pages or not (is_last or num_pages >= self._min_part_pages):
            return False
        promotion.take_part(num_pages)
        self._waiting.lead(promotion.request_id, promotion.chain.key(promotion.lock.num_pages))
        return True

    def _take_part(self, num_pages: int) -> PageIds | None:
        # Windows are few pages, and which of them are needed is known once the request runs.
        reaches = self._settings.reaches
        return self._l1.allocate(tuple([num_pages if reach is None else 0 for reach in reaches]))

    def _begin(self, promotion: Promotion) -> Promotion:
        name = promotion.request_id
        self._promotions[name] = promotion
        self._waiting.lead(name, promotion.chain.key(promotion.lock.num_pages))
        return promotion

    def num_returning(self) -> int:
        """Pages that a session may hold which is about to go on, were nobody to need any."""
        return self._settings.max_pages // _L1_PAGES_PER_PROMOTED_PAGE - self.num_pages

    def has_part(self, request: RequestState) -> bool:
        """Whether a part is on its way for this request."""
        promotion = self._promotions.get(request.request_id)
        return promotion is not None and promotion.num_part_pages > 0

    def num_left(self, request: RequestState, lock: Lock) -> int:
        """Pages that a request's promotion may take behind `lock`, some of them not yet.

        One that goes through L2 by turns may keep all that it will need when it runs.
        """
        own = self._promotions.get(request.request_id)
        num_others = self.num_pages - (0 if own is None else own.num_pages)
        num_left = self._most_pages(request) - num_others - lock.num_pages
        pairs = zip(self._l1.num_freeable(), self._settings.reaches, strict=True)
        return min([num_left, *(num for num, reach in pairs if reach is None)])

    def _most_pages(self, request: RequestState) -> int:
        """The most pages that a request's promotion may keep, if there is no other one."""
        max_pages = self._settings.max_pages
        return max_pages if request.prefetch.is_halted else max_pages // _L1_PAGES_PER_PROMOTED_PAGE

    def wait_for_load(self, promotion: Promotion, load: Load) -> None:
        """Note that HostMemory has leased the first pages of a part, which `load` brings."""
        self._l1.release(promotion.wait_for_load(load))

    def publish(self, promotion: Promotion, now_s: float) -> None:
        """Publish a part that is loaded as the prefix of all who want it."""
        start = promotion.lock.num_pages
        stop = start + promotion.num_part_pages
        insertion = self._l1.insert(
            promotion.chain,
            promotion.lock,
            promotion.part_with_gaps(),
            segment=Segment.PROMPT,
            priority=promotion.priority,
            now_s=now_s,
        )
        self._waiting.pages_came(split_keys(promotion.chain.keys(stop, start)))

        # What the tree held already is not needed twice.
        part = promotion.part_with_gaps()
        promotion.drop_part()
        self._l1.release(duplicates(part, insertion.page_ids))
        self._waiting.lead(promotion.request_id, None)

    def drop_part(self, promotion: Promotion) -> None:
        """Give back the pages of a promotion's part that will not come; what is to come ends."""
        if promotion.is_for_waiting_request:
            self._drop_part(promotion)
        else:
            self.end(promotion.request_id)

    def _drop_part(self, promotion: Promotion) -> None:
        self._l1.release(promotion.drop_part())
        self._waiting.lead(promotion.request_id, None)
        # Its lookup has ended, so nothing else would let it be looked at again.
        request = self._waiting.requests.get(promotion.request_id)
        if request is not None and request.prefetch.is_halted:
            self._waiting.wake(request)

    def end(self, name: RequestId) -> None:
        """End a promotion; what it has published stays cached."""
        promotion = self._promotions.pop(name, None)
        if promotion is not None:
            self._drop_part(promotion)
            self._l1.release(promotion.drop_reserved())
            self._l1.withdraw(promotion.lock)

    def give_way(self, num_pages: PageCounts) -> None:
        """End promotions, newest first, until so many pages are or can be made free.

        Those of sessions, of which no request waits yet, end before all others.
        """
        if self._promotions and not self._l1.can_free(num_pages):
            self._end_returns()
        while self._promotions and not self._l1.can_free(num_pages):
            self.end(next(reversed(self._promotions)))

    def _end_returns(self) -> None:
        for promotion in self.all():
            if promotion.returns is not None:
                self.end(promotion.request_id)
