"""The choice of ends to fetch for, against the rule applied to every end one by one."""

from hypothesis import given, settings
from hypothesis import strategies as st

from raydix.runtime.cache.host.window_ends import (
    FetchPlan,
    PageHope,
    PrefixRule,
    make_rule,
    plan_fetch,
)
from raydix.runtime.config.checkpoint_distance import checkpoint_distance
from raydix.runtime.config.kv_layout import GroupKind, KvGroup, KvLayout

HOPES = {".": PageHope.LOST, "?": PageHope.FETCHABLE, "2": PageHope.HERE}
MAPS = st.text("2?.", min_size=0, max_size=24)


def plan(rule: PrefixRule, *maps: str) -> FetchPlan:
    return plan_fetch(rule, [bytes(HOPES[hope] for hope in each) for each in maps])


def can_end(rule: PrefixRule, maps: tuple[str, ...], end: int, good: str) -> bool:
    needed = (each[start:end] for each, start in zip(maps, rule.starts(end), strict=True))
    return all(hope in good for run in needed for hope in run)


def rule_of(*reaches: int | None, apart: int = 100) -> PrefixRule:
    return PrefixRule(reaches=reaches, checkpoint_pages=apart)


@settings(max_examples=1000)
@given(
    maps=st.tuples(MAPS, MAPS, MAPS),
    reaches=st.tuples(*[st.none() | st.integers(0, 5)] * 3),
    apart=st.integers(1, 10),
    num_groups=st.integers(1, 3),
)
def test_plan_is_what_trying_every_end_gives(
    maps: tuple[str, ...], reaches: tuple[int | None, ...], apart: int, num_groups: int
) -> None:
    length = min(map(len, maps[:num_groups]))
    maps = tuple(each[:length] for each in maps[:num_groups])
    rule = PrefixRule(reaches=reaches[:num_groups], checkpoint_pages=apart)
    reached = max(end for end in range(length + 1) if can_end(rule, maps, end, "2"))
    left = [end for end in range(reached + 1, length + 1) if can_end(rule, maps, end, "2?")]
    expected = []
    while left:
        expected.insert(0, left[-1])
        left = [end for end in left if end <= expected[0] - apart]

    found = plan(rule, *maps)

    assert found == FetchPlan(reached, tuple(expected))
    assert found.best == max([reached, *expected])


def test_full_pages_alone_are_fetched_up_to_the_first_that_is_lost() -> None:
    assert plan(rule_of(None), "22??2?.?2") == FetchPlan(2, (6,))


def test_window_at_a_checkpoint_is_enough() -> None:
    assert plan(rule_of(None, 2), "????????", "....??..") == FetchPlan(0, (6,))


def test_missing_window_page_alone_ends_nothing() -> None:
    assert plan(rule_of(None, 2), "????????", "??.???.?") == FetchPlan(0, (6,))


def test_end_that_is_reached_already_hides_earlier_checkpoints() -> None:
    assert plan(rule_of(None, 2, apart=1), "2222????", "??2222??") == FetchPlan(4, (5, 6, 7, 8))


def test_checkpoints_on_the_way_keep_their_distance() -> None:
    assert plan(rule_of(None, 1, apart=4), "?" * 12, "?" * 12) == FetchPlan(0, (4, 8, 12))


def test_groups_with_different_windows_end_together() -> None:
    assert plan(rule_of(1, 3), "??.?????", "..???...") == FetchPlan(0, (5,))


def test_model_of_windows_alone_needs_nothing_else() -> None:
    assert plan(rule_of(2), ".....??2..") == FetchPlan(0, (8,))


def test_no_pages_have_no_end() -> None:
    assert plan(rule_of(None, 2), "", "") == FetchPlan(0, ())


def layout(*groups: tuple[GroupKind, int]) -> KvLayout:
    """Groups of so many layers; windows are 64 tokens, so 4 pages."""
    return KvLayout(
        page_size=16,
        dtype="bfloat16",
        dtype_bytes=2,
        groups=tuple(
            KvGroup(
                kind=kind,
                layers=tuple(range(num_layers)),
                num_kv_heads=1,
                head_dim=8,
                window=64 if kind is GroupKind.WINDOW else None,
            )
            for kind, num_layers in groups
        ),
    )


def test_checkpoints_are_eight_windows_apart_and_farther_where_windows_are_larger() -> None:
    full, window = GroupKind.FULL, GroupKind.WINDOW
    assert make_rule(layout((full, 2), (window, 1))) == rule_of(None, 4, apart=32)
    assert make_rule(layout((full, 1), (window, 5))) == rule_of(None, 4, apart=160)
    assert make_rule(layout((window, 3))) == rule_of(4, apart=32)
    assert make_rule(layout((full, 1), (full, 1))).reaches == (None, None)


def test_states_on_the_way_to_the_end_of_a_chain_are_an_eighth_of_what_is_fetched() -> None:
    full = KvGroup(kind=GroupKind.FULL, layers=(0,), num_kv_heads=1, head_dim=8)
    state = KvGroup(kind=GroupKind.STATE, layers=(1,), num_kv_heads=1, head_dim=16 * 16 * 10)
    layout = KvLayout(page_size=16, dtype="float32", dtype_bytes=4, groups=(full, state))
    num_pages, apart = 800, checkpoint_distance(layout)
    assert apart == 10

    # L3 has the states at all regular checkpoints.
    states = ("." * (apart - 1) + "?") * (num_pages // apart)
    found = plan(make_rule(layout), "?" * num_pages, states)

    assert found.best == num_pages
    on_the_way = len(found.ends) - 1
    assert 0 < on_the_way * layout.payload_bytes(1) <= num_pages * layout.payload_bytes(0) / 8
