"""When engines may share an L2, and how long it stays after them."""

from dataclasses import replace

import hypothesis.strategies as st
from hypothesis import given

from raydix.runtime.actors.process import ProcessId
from raydix.runtime.actors.supervision.l2_plan import Guest, L2Plan, L2Stay
from raydix.runtime.cache.host.settings import HostSettings
from raydix.runtime.config.l3 import L3Section
from raydix.runtime.config.loading import load_config
from raydix.runtime.config.policies import EvictionPolicy
from raydix.runtime.storage.namespace import make_namespace
from tests.runtime.storage.stores import LAYOUT

SETTINGS = HostSettings(page_size=LAYOUT.page_size)
PLAN = L2Plan(
    model_path="m",
    namespace=make_namespace(b"m", "0", LAYOUT),
    layout=LAYOUT,
    size_bytes=64 << 20,
    is_size_fixed=True,
    floor_bytes=None,
    total_bytes=None,
    settings=SETTINGS,
    l3=None,
    folder=None,
    pull=None,
)


def guest(number: int, keep_s: float = 10.0) -> Guest:
    return Guest(
        engine=f"engine {number}",
        process=ProcessId(number, 1),
        scheduler_address="unix:/nowhere",
        secret=b"",
        keep_s=keep_s,
    )


def test_plans_that_agree_have_no_differences() -> None:
    assert PLAN.differences(replace(PLAN, model_path="elsewhere")) == []


def test_each_difference_is_told_by_its_key_with_both_values() -> None:
    other = replace(
        PLAN,
        size_bytes=32 << 20,
        settings=replace(SETTINGS, eviction=EvictionPolicy.LFU),
        l3=section("/kv"),
    )
    assert list(PLAN.differences(other)) == [
        "cache.l2.bytes_per_node is 64MiB, and there 32MiB",
        "cache.l2.eviction is lru, and there lfu",
        "cache.l3 is null, and there {'backend': 'file', 'path': '/kv'}",
    ]


def test_no_difference_tells_a_password() -> None:
    url = "redis://app:a-password@host:1/0"
    values = {"model": {"path": "m"}, "cache": {"l3": {"backend": "redis", "url": url}}}
    other = replace(PLAN, l3=load_config(values).cache.l3)
    [told] = PLAN.differences(other)
    assert "redis://...@host:1/0" in told
    assert "a-password" not in told


def test_size_in_proportion_to_an_l1_fits_any() -> None:
    assert replace(PLAN, is_size_fixed=False).differences(replace(PLAN, size_bytes=1)) == []


def section(path: str) -> L3Section:
    cache = {"l3": {"backend": "file", "path": path}}
    l3 = load_config({"model": {"path": "m"}, "cache": cache}).cache.l3
    assert l3 is not None
    return l3


def test_two_lives_of_one_name_are_two_guests() -> None:
    one, later = guest(1), replace(guest(1), process=ProcessId(1, 2))
    assert one.name != later.name


def test_stay_has_no_end_before_anybody_has_come() -> None:
    assert L2Stay().ends_at_s is None


def test_stay_begins_when_the_last_guest_has_gone() -> None:
    stay = L2Stay()
    for number in (1, 2):
        stay.come(guest(number))
    stay.go(guest(1).name, 5.0, holds_pages=True)
    assert stay.ends_at_s is None
    stay.go(guest(2).name, 7.0, holds_pages=True)
    assert stay.ends_at_s == 17.0


def test_whoever_comes_ends_the_stay_that_runs() -> None:
    stay = L2Stay()
    stay.come(guest(1))
    stay.go(guest(1).name, 5.0, holds_pages=True)
    stay.come(guest(2))
    assert stay.ends_at_s is None


def test_what_holds_nothing_is_not_kept() -> None:
    stay = L2Stay()
    stay.come(guest(1))
    stay.go(guest(1).name, 5.0, holds_pages=False)
    assert stay.ends_at_s == 5.0


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.floats(0, 10)), max_size=30))
def test_stay_never_ends_under_a_guest_nor_earlier_than_one_asked(
    acts: list[tuple[int, bool, float]],
) -> None:
    stay, here, asked_s = L2Stay(), set(), 0.0
    for now_s, (number, comes, keep_s) in enumerate(acts):
        if comes:
            stay.come(guest(number, keep_s))
            here.add((number, keep_s))
            here = {(each, kept) for each, kept in here if each != number or kept == keep_s}
        else:
            stay.go(guest(number).name, float(now_s), holds_pages=True)
            gone = [kept for each, kept in here if each == number]
            asked_s = max([asked_s, *(now_s + kept for kept in gone)])
            here = {(each, kept) for each, kept in here if each != number}
        assert len(stay.guests) == len(here)
        if here:
            assert stay.ends_at_s is None
        elif stay.ends_at_s is not None:
            assert stay.ends_at_s >= asked_s
