"""Prompts that are longer than L2's room for pages from L3 go through it by turns, into L1."""

from typing import Any

import pytest

from raydix.runtime.cache.host import events as host_events
from raydix.runtime.cache.page_key import KEY_BYTES, split_keys
from raydix.runtime.config.kv_layout import KvLayout
from raydix.runtime.config.policies import LoadPolicy, PrefetchStrategy
from raydix.runtime.messages import host
from raydix.runtime.messages.host import PageSource
from raydix.runtime.scheduler import events
from raydix.runtime.scheduler.phase import Phase
from raydix.runtime.scheduler.settings import PrefetchSettings
from tests.runtime.scheduler.core_driver import CoreDriver
from tests.runtime.scheduler.keys import mirror_keys
from tests.runtime.scheduler.pages.test_promotion import (
    NUM_PAGES,
    PROMPT,
    driver_with,
    require_all_given_back,
    sent_loads,
)
from tests.runtime.scheduler.storage_cluster import PATIENT, ask, cluster_with, flush, serve, settle
from tests.simulation.checks import check_answers
from tests.simulation.cluster import Cluster
from tests.simulation.faults import Faults
from tests.simulation.layouts import FULL_AND_WINDOW, LATENT, LAYOUT

FAST = Faults(storage_s=0.0005)
"""L2 forgets nothing before L3 has it."""
LONG = [token % 11 for token in range(97)]
"""24 full pages and a token."""
L2_PAGES = 12
"""Half a prompt; what L3 brings may fill half of that."""
TIMEOUT = PrefetchSettings(strategy=PrefetchStrategy.TIMEOUT, base_s=100.0, cap_at_recompute=False)
LARGE_PARTS = 8 << 20
L3, NO_ROOM = PageSource.L3, PageSource.NO_HOST_PAGE


def narrow_cluster(**changes: Any) -> Cluster:
    """No part of a prompt is large enough to be promoted before L2 is full."""
    fields = {"l2_pages": L2_PAGES, "min_tokens": 16, "min_part_bytes": LARGE_PARTS}
    return cluster_with(FAST, **(fields | changes))


@pytest.mark.parametrize("prefetch", [PATIENT, TIMEOUT])
@pytest.mark.parametrize("layout", [LAYOUT, LATENT])
@pytest.mark.parametrize("min_part_bytes", [0, LARGE_PARTS])
def test_prompt_longer_than_l2_comes_whole_from_l3(
    prefetch: PrefetchSettings, layout: KvLayout, min_part_bytes: int
) -> None:
    cluster = narrow_cluster(prefetch=prefetch, layout=layout, min_part_bytes=min_part_bytes)
    serve(cluster, "cold", LONG)
    flush(cluster)
    assert serve(cluster, "warm", LONG) == {"l3": 96, "computed:partial_page": 1}


def test_prompt_that_ends_in_a_window_comes_whole() -> None:
    prompt = [token % 11 for token in range(401)]
    cluster = narrow_cluster(layout=FULL_AND_WINDOW, num_pages=(120, 120), max_model_len=500)
    serve(cluster, "cold", prompt)
    flush(cluster)
    assert serve(cluster, "warm", prompt) == {"l3": 400, "computed:partial_page": 1}


def test_prompt_that_fills_l1_comes_whole() -> None:
    cluster = narrow_cluster(num_pages=(26,))
    serve(cluster, "cold", LONG)
    flush(cluster)
    assert serve(cluster, "warm", LONG) == {"l3": 96, "computed:partial_page": 1}


@pytest.mark.parametrize("num_pages", [26, 40, 200])
def test_several_such_prompts_at_once_all_come(num_pages: int) -> None:
    prompts = {f"p{number}": [number, *LONG[1:]] for number in range(4)}
    cluster = narrow_cluster(num_pages=(num_pages,))
    for name, prompt in prompts.items():
        serve(cluster, f"cold {name}", prompt)
    flush(cluster)

    for name, prompt in prompts.items():
        ask(cluster, name, prompt)
    settle(cluster)

    check_answers(cluster)
    found = [cluster.answers[name].sources or {} for name in prompts]  # type: ignore[index]
    assert found == [{"l3": 96, "computed:partial_page": 1}] * 4


def test_turns_of_a_short_rest_are_asked_for_however_many_tokens_are_the_least() -> None:
    cluster = narrow_cluster(min_tokens=64)
    serve(cluster, "cold", LONG)
    flush(cluster)
    assert serve(cluster, "warm", LONG) == {"l3": 96, "computed:partial_page": 1}


@pytest.mark.parametrize("load", [LoadPolicy.NEVER])
def test_prompt_that_is_not_to_be_loaded_runs_at_once(load: LoadPolicy) -> None:
    cluster = narrow_cluster(load=load)
    serve(cluster, "cold", LONG)
    flush(cluster)
    sources = serve(cluster, "warm", LONG)
    assert sources.keys() >= {"computed:recompute_cheaper", "computed:no_host_page"}
    assert cluster.core.stats().get("repeated_lookups", 0) == 0


def test_best_effort_waits_for_no_turn() -> None:
    best = PrefetchSettings(strategy=PrefetchStrategy.BEST_EFFORT)
    cluster = narrow_cluster(prefetch=best)
    serve(cluster, "cold", LONG)
    flush(cluster)
    assert "l3" not in serve(cluster, "warm", LONG)


def test_fetched_pages_fill_at_most_half_of_l2_at_any_time() -> None:
    cluster = narrow_cluster()
    serve(cluster, "cold", LONG)
    flush(cluster)
    most = 0

    def is_over() -> bool:
        nonlocal most
        stats = cluster.node.host_memory.core.stats()  # type: ignore[union-attr]
        most = max(most, stats["pages_staged"] + stats["pages_reading"])
        return cluster.answers["warm"].ending is not None  # type: ignore[index]

    ask(cluster, "warm", LONG)
    cluster.run(is_over)
    assert 0 < most <= cluster.node.geometry.max_pages(0) // 2


STAGES = ["halted", "leasing", "sent", "loaded", "next turn"]


def turning(driver: CoreDriver, stage: str) -> str:
    """A request of which L2 has room for three pages, as far as this on their way to L1."""
    name = driver.submit(PROMPT, max_tokens=1, name="waiting")
    driver.to_host.clear()
    keys = driver.keys(PROMPT)[: 3 * KEY_BYTES]
    driver.ready.update(split_keys(keys))
    driver.hear_host(host.MirrorUpdate(ready=mirror_keys(keys)))
    driver.report_lookup(name, [L3] * 3 + [NO_ROOM] * (NUM_PAGES - 3))
    if stage in STAGES[2:]:
        driver.host_turn()
        assert sent_loads(driver) == [3]
    if stage in STAGES[3:]:
        driver.step()
    if stage == "next turn":
        driver.finish_copies()
        assert driver.to_host, "the rest is looked up"
    return name


@pytest.mark.parametrize("stage", STAGES)
def test_abort_gives_everything_back(stage: str) -> None:
    driver = driver_with(min_part_bytes=LARGE_PARTS)
    name = turning(driver, stage)
    driver.abort(name)
    driver.run()
    assert driver.answers[name].ending == "abort"
    require_all_given_back(driver)


@pytest.mark.parametrize("stage", STAGES)
def test_death_of_the_rank_costs_time_alone(stage: str) -> None:
    driver = driver_with(min_part_bytes=LARGE_PARTS)
    name = turning(driver, stage)
    driver.lose_rank(0)
    driver.attach_rank(0, incarnation=2)
    driver.run()
    driver.report_lookup(name, [PageSource.CANCELLED] * NUM_PAGES)
    driver.run()
    assert driver.answers[name].ending == "length"
    require_all_given_back(driver)


@pytest.mark.parametrize("stage", STAGES)
def test_death_of_host_memory_costs_what_is_not_loaded(stage: str) -> None:
    driver = driver_with(min_part_bytes=LARGE_PARTS)
    name = turning(driver, stage)
    driver.lose_host()
    driver.run()
    assert driver.answers[name].ending == "length"
    require_all_given_back(driver)


@pytest.mark.parametrize("stage", STAGES)
def test_silence_of_host_memory_ends_the_wait(stage: str) -> None:
    driver = driver_with(min_part_bytes=LARGE_PARTS)
    name = turning(driver, stage)
    driver.wait(101.0)
    driver.run()
    assert driver.answers[name].ending == "length"


def test_stale_load_is_not_believed_and_the_turn_is_tried_again() -> None:
    driver = driver_with(min_part_bytes=LARGE_PARTS)
    name = turning(driver, "loaded")
    driver.finish_copies(is_stale=True)
    assert driver.core.stats()["stale_loads"] == 1
    driver.run()
    assert driver.core.stats()["promoted_pages"] == 3
    assert (driver.answers[name].sources or {})["l3"] == 12
    require_all_given_back(driver)


def test_pages_that_l2_has_dropped_meanwhile_end_the_turns() -> None:
    driver = driver_with(min_part_bytes=LARGE_PARTS)
    name = turning(driver, "halted")
    driver.drop_from_l2(driver.keys(PROMPT))
    driver.run()
    assert driver.answers[name].ending == "length"
    require_all_given_back(driver)


def test_request_that_can_run_ends_the_promotion_but_not_the_turns() -> None:
    driver = driver_with(num_pages=12, min_part_bytes=LARGE_PARTS)
    name = turning(driver, "next turn")
    driver.submit(list(range(700, 737)), max_tokens=1, name="other")
    driver.run()
    assert driver.answers["other"].ending == "length"  # type: ignore[index]
    driver.report_lookup(name, [PageSource.IO_ERROR] * NUM_PAGES)
    driver.run()
    assert driver.answers[name].ending == "length"
    require_all_given_back(driver)


@pytest.mark.parametrize("after_s", [0.001, 0.05])
def test_an_engine_that_is_to_sleep_lets_turns_end_first(after_s: float) -> None:
    cluster = narrow_cluster()
    serve(cluster, "cold", LONG)
    flush(cluster)
    ask(cluster, "warm", LONG)
    order = events.FallAsleep(with_weights=False)
    cluster.after(after_s, lambda: cluster.to_core(order))
    cluster.run(lambda: cluster.core.phase is Phase.ASLEEP)
    check_answers(cluster)
    assert cluster.answers["warm"].sources == {  # type: ignore[index]
        "l3": 96,
        "computed:partial_page": 1,
    }


@pytest.mark.parametrize("after_s", [0.001, 0.01, 0.02, 0.05, 0.1])
@pytest.mark.parametrize("fault", ["storage", "host", "rank", "flush", "abort"])
def test_faults_in_the_midst_of_turns_cost_no_answer(fault: str, after_s: float) -> None:
    cluster = narrow_cluster(num_pages=(60,))
    for number in range(3):
        serve(cluster, f"cold {number}", [number, *LONG[1:]])
    flush(cluster)
    for number in range(3):
        ask(cluster, f"warm {number}", [number, *LONG[1:]])

    def strike() -> None:
        assert cluster.node.host_memory is not None
        assert cluster.node.storage is not None
        match fault:
            case "storage":
                cluster.node.storage.kill()
            case "host":
                cluster.node.host_memory.kill()
            case "rank":
                cluster.kill_rank(0)
            case "flush":
                cluster.to_core(events.FlushL1())
                cluster.node.to_host(host_events.FlushHost())
            case _:
                cluster.abort("warm 0")  # type: ignore[arg-type]

    cluster.after(after_s, strike)
    settle(cluster)
    check_answers(cluster)
    assert all(answer.ending is not None for answer in cluster.history)


def test_what_l2_has_lost_while_its_request_waited_for_room_is_brought_once_more() -> None:
    driver = driver_with(num_pages=10, min_part_bytes=LARGE_PARTS)
    driver.submit(list(range(700, 725)), max_tokens=4, name="other")
    driver.host_turn()
    name = driver.submit(PROMPT, max_tokens=1, name="waiting")
    driver.to_host.clear()
    driver.fill_l2(PROMPT)
    driver.report_lookup(name, [L3] * NUM_PAGES)
    driver.drop_from_l2(driver.keys(PROMPT))
    assert name not in driver.answers, "it has no room beside the other"

    while driver.core.stats()["num_requests_running"]:
        driver.step()
    lookups = [message for message in driver.to_host if isinstance(message, host.Lookup)]
    assert len(lookups) == 1
    driver.fill_l2(PROMPT)
    driver.report_lookup(name, [L3] * NUM_PAGES)
    driver.run()
    assert driver.answers[name].sources == {"l3": 32, "computed:partial_page": 1}
    require_all_given_back(driver)
