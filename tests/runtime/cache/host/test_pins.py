"""Pins hold a prompt's pages in L2, within their bound, for their time, and for their tenant."""

import pytest

from raydix.ids import PageKey, PinId, TenantId
from raydix.runtime.cache.host import pins
from raydix.runtime.cache.host.index import HostIndex
from raydix.runtime.cache.host.pins import HostPins
from raydix.runtime.cache.host.window_ends import PrefixRule
from raydix.runtime.messages.retention import Pin
from tests.runtime.cache.host.index_pages import key, make_geometry

A, B = TenantId(1), TenantId(2)
NUM_PAGES = 64


class Tier:
    """An L2 of pages of one group, and its pins."""

    def __init__(self, max_pages: int = 16) -> None:
        self.index = HostIndex(make_geometry(NUM_PAGES // 4, (4,)))
        self.pins = HostPins(
            self.index,
            PrefixRule(),
            page_size=4,
            max_bytes=max_pages * self.index.page_bytes[0],
        )
        self.now_s = 0.0

    def fill(self, *names: int) -> list[PageKey]:
        """Have pages of these names."""
        self.index.advance(self.now_s)
        for name in names:
            if self.index.find(0, key(name)) is None:
                page_id = self.index.allocate(0)
                assert page_id is not None
                self.index.publish(page_id, key(name))
        return [key(name) for name in names]

    def flood(self) -> None:
        """Have all other pages make way."""
        for name in range(1000, 1000 + 2 * NUM_PAGES):
            self.fill(name)

    def pin(
        self, name: str, keys: list[PageKey], tenant: TenantId = A, seconds: float = 9.0
    ) -> int:
        wanted = Pin(pin_id=PinId(name), tenant=tenant, seconds=seconds)
        held = self.pins.pin(wanted, keys, self.now_s)
        self.check()
        return held

    def check(self) -> None:
        self.pins.check(self.now_s)
        self.index.check()
        assert self.index.num_readers == self.pins.num_pins

    def has(self, keys: list[PageKey]) -> bool:
        return None not in self.index.find_all(0, keys)

    def names(self) -> list[str]:
        return [each["pin_id"] for each in self.pins.figures(self.now_s)]


def test_pinned_pages_outlive_a_flood_and_others_do_not() -> None:
    tier = Tier()
    keys, others = tier.fill(1, 2, 3), tier.fill(4)
    assert tier.pin("a", keys) == 3
    tier.flood()
    assert tier.has(keys)
    assert not tier.has(others)


@pytest.mark.parametrize("ends", ["released", "run out"])
def test_nothing_is_pinned_for_ever(ends: str) -> None:
    tier = Tier()
    keys = tier.fill(1, 2)
    tier.pin("a", keys, seconds=5.0)
    if ends == "released":
        tier.pins.release(A, PinId("a"))
    else:
        assert tier.pins.next_expiry_s == 5.0
        tier.now_s = 5.0
        tier.pins.expire(tier.now_s)
    tier.check()
    tier.flood()
    assert not tier.has(keys)


def test_a_pin_holds_what_is_there_up_to_the_first_gap() -> None:
    tier = Tier()
    tier.fill(1, 2, 4)
    assert tier.pin("a", [key(1), key(2), key(3), key(4)]) == 2
    assert tier.pin("b", [key(9)]) == 0
    assert tier.names() == ["a"]


def test_a_later_pin_of_the_same_name_replaces_the_earlier() -> None:
    tier = Tier()
    first, second = tier.fill(1, 2), tier.fill(5)
    tier.pin("a", first, seconds=5.0)
    tier.pin("a", second, seconds=50.0)
    tier.now_s = 10.0
    tier.pins.expire(tier.now_s)
    assert [(each["pin_id"], each["pages"]) for each in tier.pins.figures(10.0)] == [("a", 1)]


def test_a_page_of_two_pins_is_held_until_both_end() -> None:
    tier = Tier()
    keys = tier.fill(1, 2)
    tier.pin("a", keys)
    tier.pin("b", keys, B)
    tier.pins.release(A, PinId("a"))
    tier.flood()
    assert tier.has(keys)


def test_another_tenant_releases_nothing() -> None:
    tier = Tier()
    tier.pin("a", tier.fill(1))
    tier.pins.release(B, PinId("a"))
    assert tier.names() == ["a"]


def test_the_oldest_pins_of_whoever_holds_most_are_given_up() -> None:
    tier = Tier(max_pages=4)
    tier.pin("small", tier.fill(1), B)
    for name in range(6):
        tier.pin(f"a{name}", tier.fill(10 + name))
    assert tier.names() == ["small", "a3", "a4", "a5"]
    assert tier.pins.num_given_up == 3


@pytest.mark.parametrize(
    ("num_pages", "expected"), [(2, ["a1", "a2", "b"]), (3, ["a0", "a1", "a2"])]
)
def test_no_tenant_loses_a_pin_to_one_that_would_hold_more(
    num_pages: int, expected: list[str]
) -> None:
    tier = Tier(max_pages=4)
    for name in range(3):
        tier.pin(f"a{name}", tier.fill(10 + name))
    held = tier.pin("b", tier.fill(*range(20, 20 + num_pages)), B)
    assert held == (num_pages if "b" in expected else 0)
    assert tier.names() == expected


def test_a_pin_larger_than_the_bound_is_none() -> None:
    tier = Tier(max_pages=2)
    tier.pin("a", tier.fill(1))
    assert tier.pin("b", tier.fill(2, 3, 4)) == 0
    assert tier.names() == ["a"]


def test_budgets_hold_under_ten_thousand_pins() -> None:
    tier = Tier(max_pages=16)
    chains = [tier.fill(name, name + 1) for name in range(0, 30, 2)]
    for number in range(10_000):
        wanted = Pin(pin_id=PinId(str(number)), tenant=TenantId(number % 3), seconds=9.0)
        assert tier.pins.pin(wanted, chains[number % len(chains)], 0.0) == 2
        if number % 500 == 0:
            tier.check()
    tier.check()
    assert tier.pins.num_pins == 16
    tier.now_s = 10.0
    tier.pins.expire(tier.now_s)
    tier.check()
    assert not tier.index.num_readers


def test_there_are_few_enough_pins_to_be_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pins, "_MAX_PINS", 3)
    tier = Tier()
    keys = tier.fill(1)
    for name in range(5):
        tier.pin(str(name), keys)
    assert tier.names() == ["2", "3", "4"]


def test_a_tenant_of_many_small_pins_takes_none_of_a_tenant_of_one_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pins, "_MAX_PINS", 3)
    tier = Tier()
    tier.pin("large", tier.fill(1, 2, 3, 4), B)
    for name in range(5):
        tier.pin(f"a{name}", tier.fill(10 + name))
    assert tier.names() == ["large", "a3", "a4"]


def test_nobody_wakes_for_a_pin_that_is_released_or_replaced() -> None:
    tier = Tier()
    keys = tier.fill(1)
    tier.pin("a", keys, seconds=5.0)
    tier.pin("a", keys, seconds=50.0)
    tier.pin("b", keys, seconds=7.0)
    tier.pins.release(A, PinId("b"))
    assert tier.pins.next_expiry_s == 50.0


def test_pins_that_are_renewed_ten_thousand_times_take_no_more_room() -> None:
    tier = Tier()
    keys = tier.fill(1)
    for _ in range(10_000):
        tier.pins.pin(Pin(pin_id=PinId("a"), tenant=A, seconds=1e6), keys, tier.now_s)
    tier.check()
