"""Prompts whose pages clients have pinned in L2: within a bound, and for a while."""

from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from raydix.errors import AccountingError
from raydix.ids import HostPageId, PageKey, PinId, TenantId
from raydix.runtime.cache.deadlines import Deadlines
from raydix.runtime.cache.host.index import HostIndex
from raydix.runtime.cache.host.window_ends import PrefixRule
from raydix.runtime.cache.kv_match import longest_prefix
from raydix.runtime.messages.retention import Pin
from raydix.runtime.messages.tenants import tenant_label

_MAX_PINS = 4096
"""The most pins of all tenants: each is shown by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    """A pin, and what it holds."""

    pin: Pin
    page_ids: tuple[HostPageId, ...]
    """The pages in prefix order within each KV group."""
    num_pages: int
    """The leading pages of the prompt that are held."""
    num_bytes: int
    until_s: float


class HostPins:
    """Owns: the pins of clients, by tenant, the oldest first, and the pages that each holds.

    A page may be in several pins, and counts in each. All together hold `max_bytes` at most.
    """

    def __init__(
        self, index: HostIndex, rule: PrefixRule, *, page_size: int, max_bytes: int
    ) -> None:
        self._index = index
        self._page_size = page_size
        self._rule = rule
        self._max_bytes = max_bytes
        self._held: dict[TenantId, OrderedDict[PinId, _Held]] = {}
        self._bytes: Counter[TenantId] = Counter()
        self._ends = Deadlines[tuple[TenantId, PinId]]()
        self.num_given_up = 0
        """Pins that were given up for others so far."""

    @property
    def num_pins(self) -> int:
        """The number of pages that are held, each as often as it is."""
        every = (held for pins in self._held.values() for held in pins.values())
        return sum(len(held.page_ids) for held in every)

    @property
    def next_expiry_s(self) -> float | None:
        """The time at which the next pin runs out; None: there is none."""
        return self._ends.next_s

    def pin(self, pin: Pin, keys: Sequence[PageKey], now_s: float) -> int:
        """Hold what there is of a chain; returns how many of its leading pages are held.

        None are, and no pin is made, if there is no room for it.
        """
        self.release(pin.tenant, pin.pin_id)
        num_pages, page_ids = self._found(keys)
        num_bytes = sum(self._bytes_of(page_id) for page_id in page_ids)
        victims = self._choose_victims(num_bytes, pin.tenant)
        if not num_pages or victims is None:
            return 0
        for victim in victims:
            self.release(victim.tenant, victim.pin_id)
        self.num_given_up += len(victims)
        until_s = now_s + pin.seconds
        held = _Held(
            pin=pin,
            page_ids=tuple(page_ids),
            num_pages=num_pages,
            num_bytes=num_bytes,
            until_s=until_s,
        )
        for page_id in page_ids:
            self._index.pin(page_id)
        self._held.setdefault(pin.tenant, OrderedDict())[pin.pin_id] = held
        self._bytes[pin.tenant] += num_bytes
        self._ends.set((pin.tenant, pin.pin_id), until_s)
        return num_pages

    def _found(self, keys: Sequence[PageKey]) -> tuple[int, list[HostPageId]]:
        """The longest prefix of a chain that is there, and the pages that it needs."""
        found = [self._index.find_all(group, keys) for group in range(self._index.num_groups)]
        gaps = [bytes(page_id is None for page_id in pages) for pages in found]
        end = longest_prefix(self._rule.reaches, gaps, len(keys))
        needed = zip(found, self._rule.starts(end), strict=True)
        runs = [pages[start:end] for pages, start in needed]
        return end, [page_id for run in runs for page_id in run if page_id is not None]

    def _bytes_of(self, page_id: HostPageId) -> int:
        name = self._index.name(page_id)
        assert name is not None, "a page that is held is READY"
        return self._index.page_bytes[name[0]]

    def _choose_victims(self, num_bytes: int, tenant: TenantId) -> list[Pin] | None:
        """The pins that make room for one more of a tenant, of so many bytes; None: there is none.

        Whoever would hold most gives up its oldest: most bytes where these are lacking, most pins
        where there are too many. So a tenant loses none to one that holds more.
        """
        holds = self._bytes + Counter({tenant: num_bytes})
        left = {each: list(pins.values()) for each, pins in self._held.items()}
        counts = Counter({each: len(pins) for each, pins in left.items()}) + Counter({tenant: 1})
        victims: list[Pin] = []
        while (lack_room := holds.total() > self._max_bytes) or counts.total() > _MAX_PINS:
            sizes = holds if lack_room else counts
            most = max(sizes, key=lambda each: (sizes[each], each == tenant))
            if not left.get(most):
                return None
            oldest = left[most].pop(0)
            victims.append(oldest.pin)
            holds[most] -= oldest.num_bytes
            counts[most] -= 1
        return victims

    def release(self, tenant: TenantId, pin_id: PinId) -> None:
        """End a tenant's pin, if there is one of this id."""
        pins = self._held.get(tenant, OrderedDict())
        held = pins.pop(pin_id, None)
        if held is None:
            return
        self._ends.forget((tenant, pin_id))
        self._bytes[tenant] -= held.num_bytes
        if not pins:
            del self._held[tenant], self._bytes[tenant]
        self._index.unpin(held.page_ids)

    def expire(self, now_s: float) -> None:
        """End the pins that have run out."""
        while (ended := self._ends.take_due(now_s)) is not None:
            self.release(*ended)

    def figures(self, now_s: float) -> list[dict[str, Any]]:
        """Each pin: its id, whose it is, what it holds, and for how many seconds more."""
        return [
            {
                "pin_id": held.pin.pin_id,
                "tenant": tenant_label(held.pin.cache_salt),
                "tenant_id": held.pin.tenant,
                "reason": "pin",
                "pages": len(held.page_ids),
                "pinned_tokens": held.num_pages * self._page_size,
                "bytes": held.num_bytes,
                "left_s": round(held.until_s - now_s, 1),
            }
            for pins in self._held.values()
            for held in pins.values()
        ]

    def check(self, now_s: float) -> None:
        """Raise AccountingError unless bytes add up, are within their bound, and none is late."""
        self._ends.check()
        every = [(tenant, held) for tenant, pins in self._held.items() for held in pins.values()]
        found: Counter[TenantId] = Counter()
        for tenant, held in every:
            found[tenant] += held.num_bytes
        if found != self._bytes or found.total() > self._max_bytes or len(every) > _MAX_PINS:
            raise AccountingError(
                f"{len(every)} pins hold {found.total()} bytes; counted are "
                f"{self._bytes.total()}, allowed {self._max_bytes} and {_MAX_PINS} pins"
            )
        if self._ends.names != {(tenant, held.pin.pin_id) for tenant, held in every}:
            raise AccountingError(f"{len(self._ends)} pins are to run out, and {len(every)} held")
        late = [held.pin.pin_id for _, held in every if held.until_s <= now_s]
        if late:
            raise AccountingError(f"{len(late)} pins are held beyond their time, {late[0]} first")
