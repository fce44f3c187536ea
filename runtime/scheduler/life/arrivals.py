"""Requests that another engine begins, and that go on here: room in L1, and their pages, ahead.

Pages of L1 are reserved for all of a prompt as soon as its client foretells it, and loaded as L2
gets them, while the other engine still computes. So once the request comes it has little to load. A
reservation takes nothing that anybody else may need, gives way to whoever has no room without, and
ends with the request's coming, its abort, its client, its time, L2, or the engine's work.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from raydix.errors import AccountingError
from raydix.ids import AskingId, ClientId, RequestId, TenantId
from raydix.runtime.cache.page_key import ChainKeys
from raydix.runtime.messages.client import ExpectRequest
from raydix.runtime.messages.tenants import tenant_of
from raydix.runtime.scheduler.life.early_loads import num_early_pages, spare_of
from raydix.runtime.scheduler.life.load_choice import LoadChoice
from raydix.runtime.scheduler.life.refusals import is_sound_expectation
from raydix.runtime.scheduler.life.requests import Requests
from raydix.runtime.scheduler.life.waiting_room import has_room
from raydix.runtime.scheduler.ranks.lane import Lane
from raydix.runtime.scheduler.request.chain import Chain
from raydix.runtime.scheduler.request.transfers import Promotion
from raydix.runtime.scheduler.settings import SchedulerSettings
from raydix.runtime.scheduler.sources.kv_source import KvSource
from raydix.runtime.scheduler.timers import Timers

_MAX_EXPECTED = 256
"""The most requests that are expected: all of them are looked at with each event."""
_MAX_WITHIN_S = 120.0
"""The most seconds for which one is expected, whatever its client says."""
_MAX_HASHED_PAGES = 1024
"""The most page keys that are hashed per event, of all prompts together, oldest first."""


@dataclass(slots=True, kw_only=True)
class _Arrival:
    name: RequestId
    """The name of its promotion, which no client gives to anything, but by chance."""
    chain: Chain
    tenant: TenantId
    priority: int
    until_s: float
    lane: Lane | None = None
    """Where pages are reserved for it; None: its keys are not hashed yet."""
    num_in_l2: int = 0
    """The first pages of the prompt that L1 or L2 had when they were counted last."""


class Arrivals:
    """Owns: which requests are expected from other engines, and until when."""

    def __init__(
        self,
        settings: SchedulerSettings,
        *,
        requests: Requests,
        lanes: Sequence[Lane],
        source: KvSource,
        choice: LoadChoice,
        timers: Timers,
        num_kept: Callable[[int], int],
        load: Callable[[Lane, Promotion, int], None],
    ) -> None:
        """`num_kept`: the pages that a lane keeps by hints. `load`: loads what L2 has by now."""
        self._settings = settings
        self._requests = requests
        self._lanes = lanes
        self._source = source
        self._choice = choice
        self._timers = timers
        self._num_kept = num_kept
        self._load = load
        self._expected: dict[tuple[ClientId, AskingId], _Arrival] = {}
        self._now_s = 0.0
        self._num_pages_left = 0
        """How many more keys this event may hash."""

    @property
    def num_expected(self) -> int:
        """The number of requests that are expected."""
        return len(self._expected)

    def expect(self, client_id: ClientId, message: ExpectRequest, now_s: float) -> None:
        """Have room and pages for a request that is to come; nothing, if that cannot be."""
        asked = client_id, message.asking
        is_sound = is_sound_expectation(message, self._settings)
        if asked in self._expected or not is_sound or not self._has_room(message):
            return
        until_s = now_s + min(message.within_s, _MAX_WITHIN_S)
        self._expected[asked] = _Arrival(
            name=RequestId(f"arrival {self._requests.next_serial()}"),
            chain=Chain(
                message.token_ids,
                cache_salt=message.cache_salt,
                page_size=self._settings.page_size,
            ),
            tenant=tenant_of(message.cache_salt),
            priority=message.priority,
            until_s=until_s,
        )
        self._timers.add(until_s)

    def _has_room(self, message: ExpectRequest) -> bool:
        """Whether one more may be expected: of a tenant as many as there are places left.

        So it is of those without a salt together: they may not keep tenants out, either.
        """
        tenant = tenant_of(message.cache_salt)

        def num_own() -> int:
            return sum(each.tenant == tenant for each in self._expected.values())

        return has_room(len(self._expected), _MAX_EXPECTED, num_own)

    def end(self, client_id: ClientId, asking: AskingId | None) -> None:
        """A request has come, or will not; what was not expected changes nothing."""
        arrival = None if asking is None else self._expected.pop((client_id, asking), None)
        if arrival is not None and arrival.lane is not None:
            arrival.lane.promotions.end(arrival.name)

    def drop_all(self, client_id: ClientId) -> None:
        """A client is gone: nothing of it will come."""
        for asked in [each for each in self._expected if each[0] == client_id]:
            self.end(*asked)

    def advance(self, now_s: float, *, is_awake: bool) -> None:
        """Reserve pages for those that are new, load what has come, and end what is late.

        `is_awake`: else L1 is about to end, or has, and nothing is expected any more.
        """
        self._now_s, self._num_pages_left = now_s, _MAX_HASHED_PAGES
        for asked, arrival in list(self._expected.items()):
            is_over = now_s >= arrival.until_s or self._requests.is_closing or not is_awake
            if is_over or not self._source.view.is_usable or not self._goes_on(arrival, now_s):
                self.end(*asked)
        if not self._num_pages_left:
            self._timers.add(now_s)

    def _goes_on(self, arrival: _Arrival, now_s: float) -> bool:
        """Whether a request is to be expected further, for which all is done that can be now."""
        # Its first token comes with it, so that states behind the last page count, too.
        num_pages = arrival.chain.num_prompt_pages
        if arrival.lane is None:
            self._num_pages_left -= arrival.chain.extend_keys(num_pages, self._num_pages_left)
            if arrival.chain.num_keys < num_pages:
                return True
            return self._reserve(arrival, num_pages, now_s)
        promotion = arrival.lane.promotions.get(arrival.name)
        if promotion is None:
            # Its pages were needed by others, or went with L1.
            return False
        if promotion.num_reserved_pages and not promotion.num_part_pages:
            return self._load_more(arrival, arrival.lane, promotion, now_s)
        return True

    def _reserve(self, arrival: _Arrival, num_pages: int, now_s: float) -> bool:
        """Keep L1 pages for what L1 lacks of a prompt, as far as nobody else may need them."""
        matches = [(lane, lane.match(arrival.chain)) for lane in self._lanes if lane.is_attached]
        if not matches:
            return False
        lane, match = max(matches, key=lambda each: (each[1].num_pages, -len(each[0].running)))
        start = min(match.num_pages, num_pages)
        spare = spare_of(lane, self._requests, start, self._num_kept(lane.index))
        num_reserved = num_early_pages(num_pages - start, spare)
        if not num_reserved or not self._is_load_cheaper(num_reserved, now_s):
            return False
        lock = lane.l1.lock(match, start, now_s=now_s)
        name, chain = arrival.name, arrival.chain
        priority = arrival.priority
        if not lane.promotions.reserve(name, chain, lane.index, priority, lock, num_reserved):
            lane.l1.withdraw(lock)
            return False
        arrival.lane = lane
        return self._goes_on(arrival, now_s)

    def _load_more(self, arrival: _Arrival, lane: Lane, promotion: Promotion, now_s: float) -> bool:
        """Load what L2 has been told to have behind what L1 has. False: nothing is to be loaded."""
        start = promotion.lock.num_pages
        num_known = max(start, arrival.num_in_l2)
        num_more = self._num_in_l2(arrival.chain, num_known, start + promotion.num_reserved_pages)
        # As a rule nothing has come since.
        if not num_more:
            return True
        arrival.num_in_l2 = num_known + num_more
        num_pages = arrival.num_in_l2 - start
        if not self._is_load_cheaper(num_pages, now_s):
            return num_pages < promotion.num_reserved_pages
        self._load(lane, promotion, num_pages)
        if promotion.num_part_pages:
            # How much of it comes is counted when it has ended.
            arrival.num_in_l2 = 0
        return True

    def _is_load_cheaper(self, num_pages: int, now_s: float) -> bool:
        """Whether to load so many pages, of groups that see everything, rather than compute."""
        num_loaded = [num_pages if reach is None else 0 for reach in self._settings.reaches]
        return self._choice.is_load_cheaper(self._settings.bytes_of(num_loaded), num_pages, now_s)

    def _num_in_l2(self, chain: Chain, start: int, stop: int) -> int:
        """Pages in [start, stop) that L2 has in all groups that see everything, up to a gap."""
        known = self._source.view.keys
        full = [group for group, reach in enumerate(self._settings.reaches) if reach is None]
        if start >= stop:
            return 0
        first = ChainKeys(chain.key(start))
        if not all(known.has_page(group, first, 0) for group in full):
            return 0
        keys = ChainKeys(chain.keys(stop, start))
        return min(known.count_resident(group, keys, 0, stop - start) for group in full)

    def check(self) -> None:
        """Raise AccountingError unless what is reserved is so for those that are expected still."""
        due = {each.name for each in self._expected.values() if self._now_s < each.until_s}
        for lane in self._lanes:
            kept = {promotion.request_id for promotion in lane.promotions.reservations}
            if not kept <= due:
                raise AccountingError(
                    f"lane {lane.index}: pages are reserved for {len(kept)} requests, of which "
                    f"{len(kept - due)} are not expected any more"
                )
