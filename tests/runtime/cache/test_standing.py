"""When pages count as used, by what is known of them."""

import math

import pytest

from raydix.runtime.cache.standing import (
    Away,
    Idle,
    InUse,
    Kept,
    Over,
    Standing,
    counts_as_used_s,
    standing_after,
)
from raydix.runtime.messages.retention import Retention, RetentionKind


def test_what_stays_away_counts_as_idle_for_as_long_until_it_is_due() -> None:
    away = Away(until_s=110.0)
    assert [counts_as_used_s(away, now_s) for now_s in (100.0, 105.0, 110.0, 150.0)] == [
        90.0,
        100.0,
        110.0,
        110.0,
    ]


def test_what_is_in_use_ages_more_slowly_than_what_is_idle() -> None:
    ages = [(100.0 + s) - counts_as_used_s(InUse(100.0), 100.0 + s) for s in (0.0, 4.0, 40.0)]
    assert ages == [1.5, 2.5, 11.5]
    late = [now_s - counts_as_used_s(InUse(0.0), now_s) for now_s in (600.0, 601.0, 700.0)]
    assert late == [151.5, 152.5, 251.5], "a request that was never heard to end"


def test_what_is_over_goes_before_all_and_what_is_kept_after_what_is_used_meanwhile() -> None:
    assert counts_as_used_s(Over(), 5.0) == -math.inf
    assert counts_as_used_s(Kept(60.0), 5.0) > counts_as_used_s(Idle(59.0), 59.0)
    assert counts_as_used_s(Kept(60.0), 90.0) < counts_as_used_s(Idle(61.0), 90.0)


@pytest.mark.parametrize("standing", [Idle(3.0), InUse(3.0), Away(9.0), Kept(9.0), Over()])
def test_no_key_shrinks_as_time_passes(standing: Standing) -> None:
    keys = [counts_as_used_s(standing, now_s) for now_s in range(3, 30)]
    assert keys == sorted(keys)


def test_hints_become_standings_from_when_they_are_heard() -> None:
    def after(kind: RetentionKind) -> Standing:
        return standing_after(Retention(kind=kind, seconds=4.0), 10.0)

    assert after(RetentionKind.KEEP) == Kept(14.0)
    assert after(RetentionKind.RESUME) == Away(14.0)
    assert after(RetentionKind.END) == Over()
