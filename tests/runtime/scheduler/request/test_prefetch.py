"""Waiting for pages from L3: the strategies, what the client is told, and failing storage."""

import pytest

from raydix.runtime.cache.page_key import KEY_BYTES, split_keys
from raydix.runtime.config.policies import PrefetchStrategy
from raydix.runtime.messages import host
from raydix.runtime.messages.host import PageSource
from raydix.runtime.scheduler.request.prefetch import prefetch_deadline_s
from raydix.runtime.scheduler.settings import PrefetchSettings
from tests.runtime.scheduler.core_driver import CoreDriver
from tests.runtime.scheduler.keys import mirror_keys
from tests.runtime.scheduler.storage_cluster import (
    PAGES,
    PATIENT,
    ask,
    cluster_with,
    flush,
    serve,
    settle,
)
from tests.simulation.checks import check_answers
from tests.simulation.cluster import Cluster
from tests.simulation.faults import Faults
from tests.simulation.workload import STORAGE, Workload, run_workload

PROMPT = list(range(17))
L2, L3, PENDING = PageSource.L2, PageSource.L3, PageSource.PENDING


def driver_with(prefetch: PrefetchSettings, *, prefill_tokens_per_s: float = 1000.0) -> CoreDriver:
    return CoreDriver(
        has_host_memory=True,
        prefetch=prefetch,
        lookup_deadline_s=100.0,
        prefill_budget_tokens=64,
        start_prefill_tokens_per_s=prefill_tokens_per_s,
    )


def submit(driver: CoreDriver, sources: list[PageSource] | None = None) -> str:
    """A request whose lookup brought `sources`: by default all pages are on their way."""
    name = driver.submit(PROMPT, max_tokens=1)
    driver.to_host.clear()
    driver.report_lookup(name, sources or [PENDING] * 4)
    return name


def take_all_slots(driver: CoreDriver) -> list[str]:
    """Running requests without a full page, which look nothing up."""
    return [
        driver.submit([900 + index], max_tokens=9)
        for index in range(driver.settings.max_running_requests)
    ]


def arrive(driver: CoreDriver, name: str, num_pages: int) -> None:
    """The first pages have come from L3."""
    keys = driver.keys(PROMPT)[: num_pages * KEY_BYTES]
    driver.ready.update(split_keys(keys))
    driver.hear_host(host.MirrorUpdate(ready=mirror_keys(keys)))
    driver.report_lookup(name, [L3] * num_pages + [PENDING] * (4 - num_pages))


def is_admitted(driver: CoreDriver) -> bool:
    return driver.core.stats()["num_requests_waiting"] == 0


def test_best_effort_takes_what_has_arrived_at_first_look_and_cancels_the_rest() -> None:
    driver = driver_with(PrefetchSettings(strategy=PrefetchStrategy.BEST_EFFORT))
    blockers = take_all_slots(driver)
    name = submit(driver)
    arrive(driver, name, 2)
    assert not is_admitted(driver), "no slot is free"
    driver.abort(blockers[0])
    driver.step()
    assert is_admitted(driver)
    assert any(isinstance(message, host.CancelLookup) for message in driver.to_host)
    driver.run()

    assert driver.answers[name].sources == {
        "l3": 8,
        "computed:cancelled": 8,
        "computed:partial_page": 1,
    }


def test_wait_complete_waits_until_all_is_there_while_others_run() -> None:
    driver = driver_with(PATIENT)
    name = submit(driver)
    other = driver.submit([500, 501], max_tokens=1)
    driver.wait(50.0)
    arrive(driver, name, 3)
    driver.wait(50.0)
    driver.run()
    assert driver.answers[other].ending == "length"
    assert name not in driver.answers
    arrive(driver, name, 4)
    driver.run()
    assert driver.answers[name].sources == {"l3": 16, "computed:partial_page": 1}


def test_timeout_counts_from_when_the_request_could_have_run() -> None:
    driver = driver_with(PrefetchSettings(base_s=1.0, per_1k_tokens_s=64.0, cap_at_recompute=False))
    blockers = take_all_slots(driver)
    name = submit(driver)
    driver.wait(30.0)
    for blocker in blockers:
        driver.abort(blocker)
    while driver.plans[0]:
        driver.step()
    driver.wait(1.9)
    assert not is_admitted(driver)
    driver.wait(0.2)
    assert is_admitted(driver), "1 s + 64 s per 1024 tokens x 16 tokens have passed"
    driver.run()

    assert driver.answers[name].sources == {"computed:timed_out": 16, "computed:partial_page": 1}


@pytest.mark.parametrize("tokens_per_s", [100.0, 10_000.0])
def test_timeout_is_capped_at_the_time_to_compute_instead(tokens_per_s: float) -> None:
    driver = driver_with(PrefetchSettings(base_s=10.0), prefill_tokens_per_s=tokens_per_s)
    submit(driver)
    driver.wait(15.9 / tokens_per_s)
    assert not is_admitted(driver)
    driver.wait(0.2 / tokens_per_s)
    assert is_admitted(driver)


def test_default_timeout_for_1024_tokens_is_a_second_and_a_quarter() -> None:
    settings = PrefetchSettings(cap_at_recompute=False)
    deadline_s = prefetch_deadline_s(
        settings, first_runnable_s=5.0, pending_tokens=1024, recompute_s=0.01
    )
    assert deadline_s == 6.25


@pytest.mark.parametrize(("answer_s", "deadline_s"), [(0.0, 6.25), (1.0, 6.25), (2.0, 5.0)])
def test_request_does_not_begin_to_wait_for_storage_that_is_slower_than_its_patience(
    answer_s: float, deadline_s: float
) -> None:
    assert deadline_s == prefetch_deadline_s(
        PrefetchSettings(cap_at_recompute=False),
        first_runnable_s=5.0,
        pending_tokens=1024,
        recompute_s=0.01,
        answer_s=answer_s,
    )


def test_waiting_does_not_flood_the_core_with_wakeups() -> None:
    driver = driver_with(PrefetchSettings(base_s=10.0, cap_at_recompute=False))
    submit(driver)
    for _ in range(100):
        driver.send_tick()
    assert len(driver.core._timers) <= 4


@pytest.mark.parametrize(
    "reason",
    [
        s
        for s in PageSource
        if s not in (PENDING, PageSource.LAST_TOKEN, PageSource.PARTIAL_PAGE) and s > L3
    ],
)
def test_the_reason_that_host_memory_gives_is_passed_on(reason: PageSource) -> None:
    driver = driver_with(PATIENT)
    driver.fill_l2(PROMPT[:4])
    name = submit(driver, [L2, PENDING, PENDING, PENDING])
    driver.report_lookup(name, [L2, reason, reason, reason])
    driver.run()
    assert driver.answers[name].sources == {"l2": 4, reason.label: 12, "computed:partial_page": 1}


def test_caching_off_says_so_and_asks_nobody() -> None:
    driver = CoreDriver(prefix_caching=False, has_host_memory=True)
    for _ in range(2):
        name = driver.submit(PROMPT, max_tokens=2)
        assert not [message for message in driver.to_host if isinstance(message, host.Lookup)]
        driver.run()
        assert driver.answers[name].sources == {"computed:caching_off": 17}
    assert driver.core.stats()["l1_used_pages"] == 0
    assert not driver.core.stats().get("backed_up_pages")


def test_late_report_of_a_cancelled_lookup_does_not_end_the_next_one() -> None:
    driver = driver_with(PATIENT)
    name = submit(driver)
    first = driver.lookup_of(name)
    driver.abort(name)
    driver.answers.clear()
    again = driver.submit(PROMPT, name=name, max_tokens=1)
    driver.report_lookup(first, [PageSource.CANCELLED] * 4)
    driver.wait(1.0)
    assert not is_admitted(driver), "that report was the first lookup's"
    driver.report_lookup(again, [PageSource.NOT_FOUND] * 4)
    assert is_admitted(driver)


def test_lookup_names_the_whole_chain() -> None:
    driver = driver_with(PATIENT)
    driver.submit(PROMPT[:9], max_tokens=1)
    driver.run()
    driver.submit(PROMPT, max_tokens=1)
    lookup = next(message for message in driver.to_host if isinstance(message, host.Lookup))
    assert lookup.keys == driver.keys(PROMPT)
    assert lookup.num_l1_pages == (2,)


def test_flushed_tiers_are_filled_from_storage() -> None:
    cluster = cluster_with()
    serve(cluster, "cold", PAGES)
    flush(cluster)
    assert serve(cluster, "warm", PAGES) == {"l3": 40, "computed:partial_page": 1}


def test_page_gone_from_the_middle_of_storage_leaves_the_prefix_before_it() -> None:
    cluster = cluster_with()
    serve(cluster, "cold", PAGES)
    flush(cluster)
    assert cluster.node.storage is not None
    keys = CoreDriver().keys(PAGES)
    del cluster.node.storage.objects[0, split_keys(keys)[4]]
    assert serve(cluster, "warm", PAGES) == {
        "l3": 16,
        "computed:not_found": 24,
        "computed:partial_page": 1,
    }


def test_run_below_min_tokens_is_computed_without_a_read() -> None:
    cluster = cluster_with(min_tokens=64)
    serve(cluster, "cold", PAGES)
    flush(cluster)
    assert serve(cluster, "warm", PAGES) == {
        "computed:below_min_tokens": 40,
        "computed:partial_page": 1,
    }
    assert cluster.node.storage is not None
    assert not cluster.node.storage.num_reads


def test_miss_takes_no_host_page() -> None:
    cluster = cluster_with()
    ask(cluster, "cold", PAGES)
    assert cluster.node.host is not None
    cluster.run(lambda: cluster.core.stats()["num_requests_running"] > 0)
    assert cluster.node.host.stats()["pages_reading"] == 0
    assert cluster.node.host.stats()["pages_filling"] == cluster.node.host.stats()["pages_granted"]


def test_sharers_of_one_read_read_it_once_and_all_count_it() -> None:
    cluster = cluster_with()
    serve(cluster, "cold", PAGES)
    flush(cluster)
    for name in ("a", "b", "c"):
        ask(cluster, name, PAGES)
    settle(cluster)
    assert cluster.node.storage is not None
    assert set(cluster.node.storage.num_reads.values()) == {1}
    sources = [cluster.answers[name].sources for name in ("a", "b", "c")]  # type: ignore[index]
    assert sources == [{"l3": 40, "computed:partial_page": 1}] * 3


@pytest.mark.parametrize("delay_s", [0.001, 0.01, 0.03, 0.05, 0.07, 0.1, 0.15, 0.3])
def test_abort_at_any_moment_of_a_prefetch_leaks_nothing(delay_s: float) -> None:
    cluster = cluster_with(Faults(storage_s=0.05))
    serve(cluster, "cold", PAGES)
    flush(cluster)
    ask(cluster, "aborted", PAGES)
    end_s = cluster.now_s + delay_s
    cluster.after(delay_s, lambda: None)
    cluster.run(lambda: cluster.now_s >= end_s)
    cluster.abort("aborted")  # type: ignore[arg-type]
    settle(cluster)


def read_until(cluster: Cluster, num_pages: int) -> None:
    """Let time pass until storage has read so many pages."""
    assert cluster.node.storage is not None
    reads = cluster.node.storage.num_reads
    cluster.run(lambda: sum(reads.values()) >= num_pages)


OTHER = [(token * 3) % 7 for token in range(41)]


def test_abort_stops_the_reads_of_its_request_within_a_batch_and_no_others() -> None:
    cluster = cluster_with(Faults(storage_s=0.05), max_read_batches=1)
    for name, prompt in (("cold", PAGES), ("other-cold", OTHER)):
        serve(cluster, name, prompt)
    flush(cluster)
    ask(cluster, "aborted", PAGES)
    ask(cluster, "other", OTHER)
    read_until(cluster, 1)
    cluster.abort("aborted")  # type: ignore[arg-type]
    settle(cluster)
    assert cluster.node.storage is not None
    own, others = (split_keys(CoreDriver().keys(prompt)) for prompt in (PAGES, OTHER))
    assert (
        sum(cluster.node.storage.num_reads[0, key] for key in own)
        <= 2 * STORAGE.batch_pages
        < len(own)
    )
    assert [cluster.node.storage.num_reads[0, key] for key in others] == [1] * len(others)
    sources = cluster.answers["other"].sources  # type: ignore[index]

    assert sources == {"l3": 40, "computed:partial_page": 1}


@pytest.mark.parametrize("strategy", [PrefetchStrategy.BEST_EFFORT, PrefetchStrategy.TIMEOUT])
def test_request_that_waits_no_longer_reads_at_most_one_more_batch(
    strategy: PrefetchStrategy,
) -> None:
    prefetch = PrefetchSettings(
        strategy=strategy, base_s=0.02, per_1k_tokens_s=0.0, cap_at_recompute=False
    )
    cluster = cluster_with(Faults(storage_s=0.05), max_read_batches=1, prefetch=prefetch)
    serve(cluster, "cold", PAGES)
    flush(cluster)
    ask(cluster, "warm", PAGES)
    cluster.run(lambda: cluster.core.stats()["num_requests_running"] > 0)
    assert cluster.node.storage is not None
    reads = cluster.node.storage.num_reads
    before = sum(reads.values())
    settle(cluster)

    assert sum(reads.values()) <= before + STORAGE.batch_pages < 10


def test_storage_that_always_fails_is_a_miss() -> None:
    cluster = cluster_with(Faults(storage_failure_fraction=1.0))
    sources = serve(cluster, "cold", PAGES)
    assert sources == {"computed:io_error": 40, "computed:partial_page": 1}


def test_failures_and_delays_never_change_an_answer() -> None:
    for seed in range(5):
        faults = Faults(storage_failure_fraction=0.3, storage_s=0.1, bad_object_fraction=0.1)
        check_answers(run_workload(Workload(seed=seed, faults=faults, l2_pages=16)))
