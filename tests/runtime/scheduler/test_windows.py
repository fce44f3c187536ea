"""Layers that look back over a window: requests hold one window, L2 those before checkpoints."""

from dataclasses import replace
from typing import Any

import pytest

from raydix.runtime.cache.page_key import KEY_BYTES
from raydix.runtime.config.kv_layout import GroupKind, KvGroup, KvLayout
from raydix.runtime.config.policies import WritePolicy
from raydix.runtime.messages.host import LeasePages
from raydix.runtime.scheduler import events
from raydix.runtime.scheduler.ranks.lane import Lane
from tests.runtime.scheduler import storage_cluster
from tests.runtime.scheduler.core_driver import BASE, CoreDriver
from tests.runtime.scheduler.storage_cluster import cluster_with
from tests.simulation.layouts import FULL_AND_WINDOW, WINDOWED

FULL = BASE.layout.groups[0]
WINDOW = replace(FULL, kind=GroupKind.WINDOW, layers=(2,), window=8)
REACH = 2
"""Pages of four tokens that hold a window of eight."""
MIXED = replace(BASE.layout, groups=(FULL, WINDOW))
ALL_WINDOW = replace(BASE.layout, groups=(WINDOW,))
PROMPT = list(range(40))
NUM_PAGES = 10


def driver_with(layout: KvLayout = MIXED, **changes: Any) -> CoreDriver:
    num_pages = (64,) * len(layout.groups)
    return CoreDriver(layout=layout, **{"num_pages": num_pages, "has_host_memory": True, **changes})


def lane_of(driver: CoreDriver) -> Lane:
    return driver.core._lanes[0]


def serve(driver: CoreDriver, tokens: list[int], **fields: Any) -> dict[str, int]:
    """Where the prompt of a request came from that runs alone to its end."""
    name = driver.submit(tokens, **fields)
    driver.run()
    sources = driver.answers[name].sources
    assert sources is not None
    return sources


def forget_windows(driver: CoreDriver) -> None:
    """L1 loses every window; what sees everything stays."""
    lane_of(driver).l1.evict((0, 1000))


def flush(driver: CoreDriver) -> None:
    driver.send(events.FlushL1())


def windows_in_l2(driver: CoreDriver, tokens: list[int]) -> list[int]:
    """Pages of a prompt that L2 holds of the WINDOW group, which is the last one."""
    group = driver.settings.num_groups - 1
    return [page for page, has in enumerate(driver.in_l2(group, driver.keys(tokens))) if has]


def window_in_l1(driver: CoreDriver, tokens: list[int]) -> list[int]:
    """The same of L1."""
    lane, group = lane_of(driver), driver.settings.num_groups - 1
    name = driver.submit(tokens, max_tokens=1)
    match = lane.match(driver.core._requests.living[name].chain)
    driver.abort(name)
    return [page for page, page_id in enumerate(match.page_ids[group].tolist()) if page_id]


def pages_of(keys: bytes, first: int, stop: int) -> bytes:
    return keys[first * KEY_BYTES : stop * KEY_BYTES]


def leases_of(messages: list[Any]) -> list[tuple[int, tuple[int, ...]]]:
    """Pages and starts of the leases that were asked for."""
    return [
        (len(message.keys) // KEY_BYTES, message.starts)
        for message in messages
        if isinstance(message, LeasePages)
    ]


@pytest.mark.parametrize("layout", [MIXED, ALL_WINDOW])
def test_a_request_that_decodes_holds_one_window_and_the_page_it_writes(layout: KvLayout) -> None:
    driver = driver_with(layout, has_host_memory=False)
    driver.submit(PROMPT[:5], max_tokens=60)
    lane, group = lane_of(driver), len(layout.groups) - 1

    most = 0
    while driver.plans[0]:
        driver.step()
        for request in lane.running.values():
            held = request.table.num_held_from(0)[group]
            locked = lane.l1.tree.num_locked_pages(group)
            most = max(most, held)
            assert locked <= REACH
            assert held <= REACH + 2

    assert most > REACH, "it has run past its window"
    assert driver.endings


def test_pages_behind_the_window_make_way_while_their_request_runs() -> None:
    driver = driver_with(ALL_WINDOW, num_pages=(12,), has_host_memory=False)
    assert serve(driver, PROMPT[:20], max_tokens=70) == {"computed:not_found": 20}
    assert driver.core.stats()["l1_used_pages"] <= 12


def test_decodes_take_pages_behind_windows_without_a_wait() -> None:
    driver = driver_with(num_pages=(64, 18), has_host_memory=False)
    for first in (0, 100, 200):
        driver.submit(list(range(first, first + 5)), max_tokens=60)
    num_rows = []
    while driver.plans[0]:
        num_rows.append(len(driver.rows(driver.step())))

    assert driver.core.stats()["l1_used_pages_1"] > 15, "the pool has long been full"
    assert num_rows == [1, 1, *[3] * 58, 2, 2]


def test_without_prefix_caching_pages_behind_the_window_go_back() -> None:
    driver = driver_with(MIXED, num_pages=(64, 14), prefix_caching=False, has_host_memory=False)
    name = driver.submit(PROMPT + PROMPT, max_tokens=19)
    most = 0
    while driver.plans[0]:
        driver.step()
        most = max(most, int(driver.core.stats()["l1_used_pages_1"]))

    assert driver.answers[name].ending == "length"
    assert REACH < most <= REACH + 2 * 4 + 1, "a window, two steps, the page that is begun"
    assert not driver.core.stats()["l1_used_pages"]


def test_l2_gets_the_windows_before_the_ends_of_prompt_and_output_alone() -> None:
    driver = driver_with()
    serve(driver, PROMPT, max_tokens=18)
    whole = [*PROMPT, *[1] * 17]
    assert windows_in_l2(driver, whole) == [8, 9, 12, 13]
    assert all(driver.in_l2(0, driver.keys(whole)))


def test_l2_gets_a_window_at_regular_distances() -> None:
    driver = driver_with(
        replace(MIXED, groups=(replace(FULL, layers=(0,)), replace(WINDOW, window=2))),
        max_model_len=200,
    )
    # Eight windows of two tokens are four pages.
    assert driver.settings.checkpoint_distance == 4
    serve(driver, PROMPT, max_tokens=1)
    assert windows_in_l2(driver, PROMPT) == [3, 7, 9]


def test_a_prefix_that_outlived_its_window_gets_a_checkpoint_where_it_ends() -> None:
    """Only the third of three requests that share a prefix finds it."""
    driver = driver_with()
    shared = PROMPT[:25]
    first, second, third = ([*shared, *[100 + number] * 12] for number in range(3))

    assert serve(driver, first)["computed:not_found"] == 36
    forget_windows(driver)
    driver.drop_from_group(1, driver.keys(first))
    assert "l1" not in serve(driver, second)
    assert windows_in_l2(driver, second)[:2] == [4, 5]

    assert serve(driver, third)["l1"] == 24
    flush(driver)
    assert serve(driver, [*shared, 200, 201])["l2"] == 24


def test_a_prompt_that_ends_within_a_cached_one_leaves_its_window_to_l2() -> None:
    driver = driver_with()
    serve(driver, PROMPT, max_tokens=1)
    assert serve(driver, PROMPT[:21], max_tokens=1)["l1"] == 20
    assert windows_in_l2(driver, PROMPT) == [3, 4, 8, 9]


def test_a_prefix_that_is_taken_up_leaves_its_window_to_l2() -> None:
    driver = driver_with()
    serve(driver, PROMPT, max_tokens=1)
    parting = [*PROMPT[:24], *[100] * 9]
    assert serve(driver, parting, max_tokens=1)["l1"] == 24
    assert windows_in_l2(driver, parting) == [4, 5, 6, 7]


def test_a_hit_in_l2_leases_one_window() -> None:
    driver = driver_with()
    keys = driver.keys(PROMPT)
    driver.fill_group(0, keys)
    driver.fill_group(1, pages_of(keys, 8, 10))

    name = driver.submit([*PROMPT, 99], max_tokens=1)
    assert leases_of(driver.host_turn()) == [(10, (0, 8))]
    driver.run()
    assert driver.answers[name].sources == {"l2": 40, "computed:partial_page": 1}


def test_a_window_in_l2_heals_a_prefix_in_l1() -> None:
    """The pages of layers that see everything are in L1, the window in L2."""
    driver = driver_with()
    serve(driver, PROMPT, max_tokens=1)
    forget_windows(driver)

    name = driver.submit([*PROMPT, 99, 98], max_tokens=1)
    assert leases_of(driver.host_turn()) == [(2, (2, 0))]
    driver.run()

    sources = {"l1": 32, "l2": 8, "computed:partial_page": 2}
    assert driver.answers[name].sources == sources
    assert window_in_l1(driver, PROMPT) == [8, 9]
    assert serve(driver, [*PROMPT, 97])["l1"] == 40


def test_only_the_pages_of_a_window_that_l1_lacks_are_loaded() -> None:
    driver = driver_with(replace(MIXED, groups=(FULL, replace(WINDOW, window=12))))
    serve(driver, PROMPT, max_tokens=1)
    lane_of(driver).l1.evict((0, 8))
    assert window_in_l1(driver, PROMPT) == [8, 9]
    driver.fill_group(1, pages_of(driver.keys(PROMPT), 7, 10))

    name = driver.submit([*PROMPT, 99], max_tokens=1)
    driver.host_turn()
    loads = [plan.loads for plan in driver.plans[0] if len(plan.loads)]
    assert [len(load) for load in loads] == [1]
    driver.run()
    assert driver.answers[name].sources == {"l1": 36, "l2": 4, "computed:partial_page": 1}


def test_a_window_that_l1_still_holds_is_in_l2_again_after_a_load_of_another() -> None:
    """Two lengths of windows: L2 has lost the one, L1 the other."""
    layout = replace(MIXED, groups=(FULL, WINDOW, replace(WINDOW, layers=(3,), window=12)))
    driver = driver_with(layout)
    serve(driver, PROMPT, max_tokens=1)
    lane_of(driver).l1.evict((0, 0, 1000))
    driver.drop_from_group(1, driver.keys(PROMPT))

    sources = serve(driver, [*PROMPT, *[99] * 12], max_tokens=1)
    assert sources == {"l1": 28, "l2": 12, "computed:not_found": 12}
    assert driver.in_l2(1, driver.keys(PROMPT)) == [False] * 8 + [True] * 2


def test_an_aborted_load_gives_the_pages_of_its_window_back() -> None:
    driver = driver_with()
    serve(driver, PROMPT, max_tokens=1)
    forget_windows(driver)
    name = driver.submit([*PROMPT, 99], max_tokens=1)
    driver.host_turn()
    driver.abort(name)
    driver.run()

    stats = driver.core.stats()
    assert stats["l1_used_pages"] == stats["l1_cached_pages"]
    assert window_in_l1(driver, PROMPT) == []
    assert not driver.leases


def test_a_stale_load_heals_nothing() -> None:
    driver = driver_with()
    serve(driver, PROMPT, max_tokens=1)
    forget_windows(driver)
    name = driver.submit([*PROMPT, 99], max_tokens=1)
    driver.host_turn()
    driver.drop_from_group(1, driver.keys(PROMPT))
    driver.finish_copies(is_stale=True)
    driver.run()

    assert driver.answers[name].ending == "length"
    assert driver.answers[name].sources == {"computed:not_found": 40, "computed:partial_page": 1}


def test_windows_that_two_requests_bring_are_kept_once() -> None:
    driver = driver_with()
    serve(driver, PROMPT, max_tokens=1)
    forget_windows(driver)
    names = [driver.submit([*PROMPT, 90 + number], max_tokens=1) for number in range(2)]
    driver.run()

    assert all(driver.answers[name].ending == "length" for name in names)
    stats = driver.core.stats()
    assert stats["l1_used_pages"] == stats["l1_cached_pages"]
    assert window_in_l1(driver, PROMPT) == [8, 9]


def test_a_prefix_is_used_up_to_the_last_checkpoint_that_has_come() -> None:
    driver = driver_with()
    keys = driver.keys(PROMPT)
    driver.fill_group(0, keys)
    driver.fill_group(1, pages_of(keys, 2, 4))
    driver.fill_group(1, pages_of(keys, 8, 9))

    assert serve(driver, [*PROMPT, 99], max_tokens=1) == {
        "l2": 16,
        "computed:no_window": 24,
        "computed:partial_page": 1,
    }
    assert windows_in_l2(driver, PROMPT) == [2, 3, 8, 9]


@pytest.mark.parametrize("group", [0, 1])
def test_a_lease_that_is_cut_short_falls_back_to_an_earlier_checkpoint(group: int) -> None:
    driver = driver_with()
    keys = driver.keys(PROMPT)
    driver.fill_group(0, keys)
    driver.fill_group(1, pages_of(keys, 2, 4) + pages_of(keys, 8, 10))

    name = driver.submit([*PROMPT, 99], max_tokens=1)
    driver.drop_from_group(group, pages_of(keys, 9, 10))
    driver.run()

    assert driver.answers[name].sources is not None
    assert driver.answers[name].sources["l2"] == 16
    assert not driver.leases


def test_a_window_may_be_missing_behind_the_start_of_an_all_window_chain() -> None:
    driver = driver_with(ALL_WINDOW)
    keys = driver.keys(PROMPT)
    driver.fill_group(0, pages_of(keys, 8, 10))

    name = driver.submit([*PROMPT, 99], max_tokens=20)
    assert leases_of(driver.host_turn()) == [(2, (0,))]
    driver.run()
    assert driver.answers[name].sources == {"l2": 40, "computed:partial_page": 1}
    assert window_in_l1(driver, PROMPT) == [8, 9]
    assert serve(driver, [*PROMPT, 98], max_tokens=1)["l1"] == 40


@pytest.mark.parametrize("window", [1, 5, 8, 9, 10])
@pytest.mark.parametrize("groups", [FULL_AND_WINDOW.groups, (WINDOWED,)])
def test_a_repeated_prompt_of_whole_pages_is_found_but_for_its_last_token(
    groups: tuple[KvGroup, ...], window: int
) -> None:
    """Where the last token sees a page more than the next one, it is kept in every tier, too."""
    layout = replace(FULL_AND_WINDOW, groups=(*groups[:-1], replace(WINDOWED, window=window)))
    cluster = cluster_with(layout=layout, num_pages=(64,) * len(groups))
    storage_cluster.serve(cluster, "cold", PROMPT)

    for tier in ("l1", "l2", "l3"):
        if tier == "l2":
            cluster.to_core(events.FlushL1())
        elif tier == "l3":
            storage_cluster.flush(cluster)
        sources = storage_cluster.serve(cluster, tier, PROMPT)
        assert sources == {tier: 39, "computed:last_token": 1}


@pytest.mark.parametrize("layout", [MIXED, ALL_WINDOW])
def test_write_back_copies_windows_before_checkpoints_alone(layout: KvLayout) -> None:
    driver = driver_with(layout, write_policy=WritePolicy.WRITE_BACK)
    serve(driver, PROMPT, max_tokens=1)
    assert windows_in_l2(driver, PROMPT) == []
    driver.send(events.BackUpL1())
    driver.run()
    assert windows_in_l2(driver, PROMPT) == [8, 9]


def test_write_back_copies_windows_before_their_pool_runs_short() -> None:
    driver = driver_with(write_policy=WritePolicy.WRITE_BACK, num_pages=(400, 16))
    for number in range(3):
        serve(driver, [number, *PROMPT[1:]], max_tokens=1)
    assert windows_in_l2(driver, PROMPT) == [8, 9]


def test_selective_writing_copies_a_window_that_is_used_again() -> None:
    driver = driver_with(write_policy=WritePolicy.WRITE_THROUGH_SELECTIVE, write_threshold=2)
    serve(driver, PROMPT, max_tokens=1)
    assert windows_in_l2(driver, PROMPT) == []
    serve(driver, [*PROMPT, 99], max_tokens=1)
    assert windows_in_l2(driver, PROMPT) == [8, 9]


def test_selective_writing_copies_windows_of_a_conversation_from_its_second_turn_on() -> None:
    driver = driver_with(write_policy=WritePolicy.WRITE_THROUGH_SELECTIVE, write_threshold=2)
    serve(driver, PROMPT, max_tokens=1)
    second = [*PROMPT, *range(5000, 5008)]
    serve(driver, second, max_tokens=1)
    assert windows_in_l2(driver, second)[-2:] == [len(second) // 4 - 2, len(second) // 4 - 1]


def test_a_retracted_request_takes_its_window_up_again() -> None:
    driver = driver_with(ALL_WINDOW, num_pages=(14,), max_running_requests=4, max_model_len=200)
    names = [driver.submit([number] * 9, max_tokens=100) for number in range(4)]
    driver.run()

    assert [driver.answers[name].ending for name in names] == ["length"] * 4
    assert driver.core.stats()["l1_used_pages"] == driver.core.stats()["l1_cached_pages"]


def test_a_long_context_needs_no_more_than_a_window_of_room() -> None:
    driver = driver_with(num_pages=(200, 30), max_model_len=400, has_host_memory=False)
    names = [driver.submit([number] * 90, max_tokens=30) for number in range(3)]
    num_running = []
    while driver.plans[0]:
        driver.step()
        num_running.append(driver.core.stats()["num_requests_running"])
    assert max(num_running) == 3, "all of them fit at once"
    assert [driver.answers[name].ending for name in names] == ["length"] * 3
