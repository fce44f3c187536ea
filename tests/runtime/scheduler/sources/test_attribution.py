"""Every prompt token has a source, and every computed one a reason that `explain` gives."""

import random
from dataclasses import replace
from typing import Any

import pytest

from raydix.runtime.cache.page_key import split_keys
from raydix.runtime.config.policies import LoadPolicy, PrefetchStrategy
from raydix.runtime.messages.host import PageSource, StorageStatus
from raydix.runtime.scheduler import events
from raydix.runtime.scheduler.request.prefetch import PrefetchState
from raydix.runtime.scheduler.settings import PrefetchSettings
from raydix.runtime.scheduler.sources.attribution import attribute
from tests.runtime.scheduler.core_driver import CoreDriver
from tests.runtime.scheduler.storage_cluster import (
    PAGES,
    PATIENT,
    ask,
    cluster_with,
    flush,
    serve,
    settle,
)
from tests.simulation.faults import Faults
from tests.simulation.layouts import FULL_AND_WINDOW
from tests.simulation.workload import BASE_SETTINGS

PROMPT = list(range(17))
L1, L2, L3, PENDING = PageSource.L1, PageSource.L2, PageSource.L3, PageSource.PENDING
NOT_FOUND = PageSource.NOT_FOUND
SLOW = Faults(storage_s=1.0)

WORLDS: dict[PageSource, dict[str, Any]] = {
    PageSource.LAST_TOKEN: {},
    PageSource.PARTIAL_PAGE: {},
    PageSource.NOT_FOUND: {},
    PageSource.BELOW_MIN_TOKENS: {"min_tokens": 64},
    # Long enough for a report, and whatever it would take to compute the pages.
    PageSource.TIMED_OUT: {
        "faults": SLOW,
        "prefetch": PrefetchSettings(base_s=0.5, cap_at_recompute=False),
    },
    PageSource.CANCELLED: {
        "faults": SLOW,
        "prefetch": PrefetchSettings(strategy=PrefetchStrategy.BEST_EFFORT),
    },
    PageSource.RECOMPUTE_CHEAPER: {"load": LoadPolicy.NEVER},
    PageSource.NO_HOST_PAGE: {"l2_pages": 8, "load": LoadPolicy.NEVER},
    PageSource.BAD_OBJECT: {"faults": Faults(bad_object_fraction=1.0)},
    PageSource.IO_ERROR: {"faults": Faults(storage_failure_fraction=1.0)},
    PageSource.CACHING_OFF: {"prefix_caching": False},
    PageSource.PROMPT_LOGPROBS: {},
    PageSource.NO_WINDOW: {
        "layout": FULL_AND_WINDOW,
        "num_pages": BASE_SETTINGS.num_pages * 2,
    },
}
"""What makes each reason come up when a prompt is asked for again after L1 and L2 were emptied."""


def test_every_reason_has_a_world() -> None:
    assert set(WORLDS) == {source for source in PageSource if L3 < source < PENDING}


@pytest.mark.parametrize("reason", WORLDS)
def test_explain_gives_each_reason(reason: PageSource) -> None:
    cluster = cluster_with(**WORLDS[reason])
    prompt = PAGES[:40] if reason is PageSource.LAST_TOKEN else PAGES
    serve(cluster, "cold", prompt)
    flush(cluster)
    if reason in (PageSource.NOT_FOUND, PageSource.LAST_TOKEN):
        assert cluster.node.storage is not None
        cluster.node.storage.objects.clear()
        serve(cluster, "warm", prompt)
    if reason is PageSource.NO_WINDOW:
        assert cluster.node.storage is not None
        for name in [name for name in cluster.node.storage.objects if name[0] == 1]:
            del cluster.node.storage.objects[name]
    num_prompt_logprobs = 0 if reason is PageSource.PROMPT_LOGPROBS else None
    again = [*prompt, *range(8)] if reason is PageSource.NOT_FOUND else prompt
    serve(cluster, "again", again, num_prompt_logprobs)
    explained = cluster.core.explain("again")  # type: ignore[arg-type]
    assert explained is not None
    ranges: Any = explained["ranges"]

    assert reason.label in {each["source"] for each in ranges}
    assert [each["start"] for each in ranges] == [0, *(each["end"] for each in ranges[:-1])]
    assert ranges[-1]["end"] == explained["prompt_tokens"]


@pytest.mark.parametrize("num_sharers", [2, 6])
def test_all_that_wait_for_one_read_count_it_as_l3(num_sharers: int) -> None:
    cluster = cluster_with()
    # No question is answered after the read.
    cluster.clock.draw = lambda mean_s: mean_s  # type: ignore[method-assign]
    serve(cluster, "cold", PAGES)
    flush(cluster)
    names = [f"sharer-{index}" for index in range(num_sharers)]
    for name in names:
        ask(cluster, name, PAGES)
    settle(cluster)
    sources = [cluster.answers[name].sources for name in names]  # type: ignore[index]
    assert sources == [{"l3": 40, "computed:partial_page": 1}] * num_sharers


def test_fewer_tokens_than_are_fetched_say_so_and_what_storage_lacks_does_not() -> None:
    cluster = cluster_with(min_tokens=16)
    serve(cluster, "cold", PAGES)
    flush(cluster)
    assert cluster.node.storage is not None
    for key in split_keys(CoreDriver().keys(PAGES))[2:]:
        del cluster.node.storage.objects[0, key]
    assert serve(cluster, "again", PAGES) == {
        "computed:below_min_tokens": 8,
        "computed:not_found": 32,
        "computed:partial_page": 1,
    }


@pytest.mark.parametrize(
    ("report", "sources"),
    [
        ([PENDING] * 2 + [NOT_FOUND] * 2, {"computed:timed_out": 8, "computed:not_found": 8}),
        ([PENDING, L3, PENDING, NOT_FOUND], {"computed:timed_out": 12, "computed:not_found": 4}),
        (None, {"computed:cancelled": 16}),
    ],
)
def test_only_what_storage_was_asked_for_times_out(
    report: list[PageSource] | None, sources: dict[str, int]
) -> None:
    driver = CoreDriver(
        has_host_memory=True, prefetch=PrefetchSettings(base_s=1.0), lookup_deadline_s=100.0
    )
    name = driver.submit(PROMPT, max_tokens=1)
    driver.to_host.clear()
    if report is not None:
        driver.report_lookup(name, report)
    driver.wait(2.0)
    driver.run()
    assert driver.answers[name].sources == {**sources, "computed:partial_page": 1}


def waiting_request(sources: list[PageSource], **changes: Any) -> tuple[CoreDriver, str]:
    """One that L2's lookup has told `sources`, some of which it waits for."""
    driver = CoreDriver(has_host_memory=True, prefetch=PATIENT, lookup_deadline_s=100.0, **changes)
    name = driver.submit(PROMPT, max_tokens=1)
    driver.to_host.clear()
    driver.report_lookup(name, sources)
    return driver, name


def test_page_that_another_request_computed_meanwhile_is_a_hit_in_l1() -> None:
    driver, name = waiting_request([PENDING] * 4)
    driver.submit(PROMPT, max_tokens=1, name="other")
    driver.host_turn()  # nothing is found for it, so that it computes
    driver.run()
    assert driver.answers["other"].ending == "length"
    driver.report_lookup(name, [NOT_FOUND] * 4)
    driver.run()
    assert driver.answers[name].sources == {"l1": 16, "computed:partial_page": 1}


def test_page_that_another_request_loaded_meanwhile_counts_where_it_was_on_arrival() -> None:
    driver, name = waiting_request([L2, L2, PENDING, PENDING])
    driver.fill_l2(PROMPT[:8])
    driver.submit(PROMPT[:9], max_tokens=1, name="other")
    driver.run()
    assert driver.answers["other"].sources == {"l2": 8, "computed:partial_page": 1}
    driver.report_lookup(name, [L2, L2, NOT_FOUND, NOT_FOUND])
    driver.run()
    assert driver.answers[name].sources == {
        "l2": 8,
        "computed:not_found": 8,
        "computed:partial_page": 1,
    }


def test_page_that_left_l1_for_l2_while_the_request_waited_counts_as_l1() -> None:
    driver = CoreDriver(has_host_memory=True, prefetch=PATIENT, lookup_deadline_s=100.0)
    driver.submit(PROMPT[:9], max_tokens=1)
    driver.run()
    name = driver.submit(PROMPT, max_tokens=1)
    driver.to_host.clear()
    driver.report_lookup(name, [L1, L1, PENDING, PENDING])
    driver.send(events.FlushL1())
    driver.report_lookup(name, [L1, L1, NOT_FOUND, NOT_FOUND])
    driver.run()

    assert driver.answers[name].sources == {
        "l1": 8,
        "computed:not_found": 8,
        "computed:partial_page": 1,
    }
    assert driver.core.stats()["loaded_pages"] == 2


def asked_of_storage(prompt: list[int], status: StorageStatus) -> dict[str, int]:
    """Sources of a prompt that is admitted before HostMemory has said anything of it."""
    driver = CoreDriver(has_host_memory=True, lookup_deadline_s=100.0)
    driver.hear_host(status)
    name = driver.submit(prompt, max_tokens=1)
    driver.to_host.clear()
    driver.wait(5.0)
    driver.run()
    return driver.answers[name].sources or {}


@pytest.mark.parametrize(
    ("status", "source"),
    [
        (StorageStatus(is_in_use=True, max_staged_pages=(9,), min_tokens=17), "below_min_tokens"),
        (StorageStatus(is_in_use=True, max_staged_pages=(9,), min_tokens=16), "cancelled"),
        (StorageStatus(is_in_use=False, max_staged_pages=(9,), min_tokens=17), "not_found"),
    ],
)
def test_cold_prompt_that_storage_is_not_asked_for_says_why(
    status: StorageStatus, source: str
) -> None:
    sources = asked_of_storage(PROMPT, status)
    assert sources == {f"computed:{source}": 16, "computed:partial_page": 1}


@pytest.mark.parametrize("is_lost", [False, True])
def test_prompt_that_waited_for_a_host_memory_which_fails_says_so(is_lost: bool) -> None:
    driver = CoreDriver(has_host_memory=True, prefetch=PATIENT, lookup_deadline_s=1.0)
    name = driver.submit(PROMPT, max_tokens=1)
    driver.to_host.clear()
    if is_lost:
        driver.lose_host()
    else:
        driver.wait(2.0)
    later = driver.submit([1, *PROMPT], max_tokens=1)
    driver.run()
    for each in (name, later):
        assert driver.answers[each].sources == {
            "computed:io_error": 16,
            "computed:partial_page": 2 if each == later else 1,
        }


@pytest.mark.parametrize(
    ("report", "source"),
    [
        ([[L2] * 4, [NOT_FOUND] * 4], "no_window"),
        ([[PageSource.NO_WINDOW] * 4, [NOT_FOUND] * 4], "no_window"),
        ([[NOT_FOUND] * 4, [NOT_FOUND] * 4], "not_found"),
        # It has left L1 since.
        ([[PageSource.L1] * 4, [PageSource.L1] * 4], "not_found"),
        ([[L2] * 4, [L2, L2, NOT_FOUND, NOT_FOUND]], "no_window"),
        ([[PageSource.IO_ERROR] * 4, [PageSource.IO_ERROR] * 4], "io_error"),
    ],
)
def test_pages_that_lack_only_their_window_say_so(
    report: list[list[PageSource]], source: str
) -> None:
    settings = replace(BASE_SETTINGS, layout=FULL_AND_WINDOW)
    prefetch = PrefetchState(by_group=tuple(map(bytes, report)), has_report=True)
    assert attribute(17, prefetch, settings, tiers=b"", num_left_pages=0) == [
        (0, 16, PageSource[source.upper()]),
        (16, 17, PageSource.PARTIAL_PAGE),
    ]


@pytest.mark.parametrize("seed", range(25))
def test_prompts_that_share_nothing_report_nothing_cached_however_often_they_are_retracted(
    seed: int,
) -> None:
    draw = random.Random(seed)
    num_pages = draw.choice([12, 16, 20, 24])
    driver = CoreDriver(
        has_host_memory=True,
        num_pages=(num_pages,),
        max_model_len=4 * num_pages,
        prefill_budget_tokens=draw.choice([4, 8]),
    )
    for index in range(6):
        prompt = [1000 * index + position for position in range(draw.choice([4, 8, 20, 30]))]
        driver.submit(prompt, max_tokens=draw.choice([4, 20, 30]), priority=draw.choice([0, 0, 1]))
        for _ in range(draw.randrange(5)):
            driver.host_turn()
            driver.finish_copies()
            if driver.plans[0]:
                driver.step()
    driver.run()
    for answer in driver.answers.values():
        assert not {"l1", "l2", "l3"} & set(answer.sources or {})
