"""L3 to L2 to L1 as a pipeline: what has come is loaded while the rest is on its way."""

from typing import Any

import pytest

from raydix.ids import AskingId, ClientId
from raydix.runtime.cache.page_key import KEY_BYTES, split_keys
from raydix.runtime.config.policies import PrefetchStrategy
from raydix.runtime.messages import host
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.client import ExpectRequest
from raydix.runtime.messages.host import PageSource
from raydix.runtime.scheduler import events
from raydix.runtime.scheduler.settings import PrefetchSettings
from tests.runtime.scheduler.core_driver import BASE, CoreDriver
from tests.runtime.scheduler.keys import mirror_keys
from tests.runtime.scheduler.storage_cluster import PAGES, ask, cluster_with, flush, serve
from tests.simulation.faults import Faults

PROMPT = list(range(33))
NUM_PAGES = 8
L3, PENDING = PageSource.L3, PageSource.PENDING
PAGE_BYTES = BASE.layout.payload_bytes(0)


def driver_with(
    strategy: PrefetchStrategy = PrefetchStrategy.WAIT_COMPLETE,
    *,
    num_pages: int = 64,
    **changes: Any,
) -> CoreDriver:
    return CoreDriver(
        has_host_memory=True,
        prefetch=PrefetchSettings(strategy=strategy, base_s=1.0, cap_at_recompute=False),
        lookup_deadline_s=100.0,
        num_pages=(num_pages,),
        min_part_bytes=changes.pop("min_part_bytes", 0),
        **changes,
    )


def waiting(driver: CoreDriver, name: str = "waiting") -> str:
    """A request whose pages are all on their way from L3."""
    driver.submit(PROMPT, max_tokens=1, name=name)
    driver.to_host.clear()
    driver.report_lookup(name, [PENDING] * NUM_PAGES)
    return name


def arrive(driver: CoreDriver, name: str, num_pages: int) -> None:
    """The first `num_pages` have come from L3."""
    keys = driver.keys(PROMPT)[: num_pages * KEY_BYTES]
    driver.ready.update(split_keys(keys))
    driver.hear_host(host.MirrorUpdate(ready=mirror_keys(keys)))
    driver.report_lookup(name, [L3] * num_pages + [PENDING] * (NUM_PAGES - num_pages))


def sent_loads(driver: CoreDriver) -> list[int]:
    """Pages of each plan's loads that no rank has carried out yet."""
    return [len(plan.loads) for plan in driver.plans[0] if len(plan.loads)]


def num_promoted(driver: CoreDriver) -> float:
    return driver.core.stats().get("promoted_pages", 0)


def test_first_load_is_sent_before_the_last_page_has_arrived() -> None:
    driver = driver_with()
    name = waiting(driver)
    arrive(driver, name, 3)
    driver.host_turn()
    assert sent_loads(driver) == [3]
    assert driver.core.stats()["num_requests_waiting"] == 1
    driver.run()
    arrive(driver, name, 6)
    driver.run()
    assert num_promoted(driver) == 6
    assert name not in driver.answers, "two pages are on their way"
    arrive(driver, name, 8)
    driver.run()

    assert driver.answers[name].sources == {"l3": 32, "computed:partial_page": 1}
    assert driver.core.stats()["loaded_pages"] == 8
    assert not driver.leases


def test_pages_that_arrive_during_a_part_make_the_next_one() -> None:
    driver = driver_with()
    name = waiting(driver)
    for num_pages in (2, 3, 4, 5):
        arrive(driver, name, num_pages)
        driver.host_turn()
    assert sent_loads(driver) == [2]
    driver.step()
    driver.finish_copies()
    driver.host_turn()
    assert sent_loads(driver) == [3]


def test_part_is_large_enough_for_a_large_copy() -> None:
    driver = driver_with(min_part_bytes=4 * PAGE_BYTES)
    name = waiting(driver)
    arrive(driver, name, 3)
    driver.run()
    assert not num_promoted(driver)
    arrive(driver, name, 4)
    driver.run()
    assert num_promoted(driver) == 4


def test_best_effort_waits_for_nothing_and_promotes_nothing() -> None:
    driver = driver_with(PrefetchStrategy.BEST_EFFORT)
    name = waiting(driver)
    arrive(driver, name, 3)
    driver.run()
    assert driver.answers[name].ending == "length"
    assert not num_promoted(driver)


def test_request_whose_patience_ends_computes_what_is_missing() -> None:
    driver = driver_with(PrefetchStrategy.TIMEOUT)
    name = waiting(driver)
    arrive(driver, name, 3)
    driver.run()
    assert num_promoted(driver) == 3
    driver.wait(2.0)
    driver.run()
    assert driver.answers[name].sources == {
        "l3": 12,
        "computed:timed_out": 20,
        "computed:partial_page": 1,
    }
    assert not driver.leases


def test_request_whose_patience_ends_during_a_part_waits_for_that_part() -> None:
    driver = driver_with(PrefetchStrategy.TIMEOUT)
    name = waiting(driver)
    arrive(driver, name, 3)
    driver.host_turn()
    driver.wait(2.0)
    assert sent_loads(driver) == [3]
    assert driver.core.stats()["num_requests_waiting"] == 1
    driver.run()

    assert driver.answers[name].sources == {
        "l3": 12,
        "computed:timed_out": 20,
        "computed:partial_page": 1,
    }
    assert driver.core.stats()["loaded_pages"] == 3


def test_those_who_share_a_prefix_load_it_once() -> None:
    driver = driver_with()
    names = [waiting(driver, name) for name in ("a", "b", "c")]
    for num_pages in (3, 8):
        for name in names:
            arrive(driver, name, num_pages)
        driver.run()
    assert driver.core.stats()["loaded_pages"] == 8
    assert [driver.answers[name].sources for name in names] == [
        {"l3": 32, "computed:partial_page": 1}
    ] * 3


STAGES = ["leasing", "sent", "loaded", "between parts"]


def promoting(driver: CoreDriver, stage: str) -> str:
    """A waiting request whose promotion has come so far."""
    name = waiting(driver)
    arrive(driver, name, 3)
    if stage != "leasing":
        driver.host_turn()
        assert sent_loads(driver) == [3]
    if stage in ("loaded", "between parts"):
        driver.step()
    if stage == "between parts":
        driver.finish_copies()
    return name


def require_all_given_back(driver: CoreDriver) -> None:
    stats = driver.core.stats()
    assert driver.core.is_idle
    assert stats["l1_used_pages"] == stats["l1_cached_pages"]
    assert not stats["l1_locked_pages"]
    assert not driver.leases


@pytest.mark.parametrize("stage", STAGES)
def test_abort_gives_everything_back(stage: str) -> None:
    driver = driver_with()
    name = promoting(driver, stage)
    driver.abort(name)
    driver.run()
    assert driver.answers[name].ending == "abort"
    require_all_given_back(driver)


@pytest.mark.parametrize("stage", STAGES)
def test_death_of_the_rank_costs_time_alone(stage: str) -> None:
    driver = driver_with()
    name = promoting(driver, stage)
    driver.lose_rank(0)
    driver.attach_rank(0, incarnation=2)
    driver.run()
    driver.report_lookup(name, [PageSource.CANCELLED] * NUM_PAGES)
    driver.run()
    assert driver.answers[name].ending == "length"
    require_all_given_back(driver)


@pytest.mark.parametrize("stage", STAGES)
def test_death_of_host_memory_costs_what_is_not_loaded(stage: str) -> None:
    driver = driver_with()
    name = promoting(driver, stage)
    driver.lose_host()
    driver.run()
    assert driver.answers[name].ending == "length"
    loaded = 0 if stage == "leasing" else 12
    assert (driver.answers[name].sources or {}).get("l3", 0) == loaded
    require_all_given_back(driver)


def test_silence_of_host_memory_ends_the_part_and_the_wait() -> None:
    driver = driver_with()
    name = promoting(driver, "leasing")
    driver.wait(101.0)
    assert driver.core.stats()["host_silences"] == 1
    driver.report_lookup(name, [L3] * 3 + [PageSource.IO_ERROR] * 5)
    driver.run()
    assert driver.answers[name].ending == "length"
    require_all_given_back(driver)


def test_stale_part_is_counted_and_published_nowhere() -> None:
    driver = driver_with()
    name = promoting(driver, "sent")
    driver.step()
    driver.finish_copies(is_stale=True)
    assert driver.core.stats()["stale_loads"] == 1
    assert not driver.core.stats()["l1_cached_pages"]
    arrive(driver, name, 8)
    driver.run()
    assert driver.answers[name].sources == {"l3": 32, "computed:partial_page": 1}
    require_all_given_back(driver)


def test_part_of_which_l2_has_dropped_the_end_is_loaded_as_far_as_it_goes() -> None:
    driver = driver_with()
    name = waiting(driver)
    arrive(driver, name, 3)
    driver.ready.difference_update(
        split_keys(driver.keys(PROMPT))[1:]
    )  # and the mirror lags behind
    driver.host_turn()
    driver.drop_from_l2(driver.keys(PROMPT)[KEY_BYTES:])
    driver.run()
    assert num_promoted(driver) == 1
    driver.report_lookup(name, [L3] * 3 + [PageSource.IO_ERROR] * 5)
    driver.run()
    assert (driver.answers[name].sources or {})["l3"] == 4
    require_all_given_back(driver)


def test_promotions_keep_at_most_half_of_l1() -> None:
    driver = driver_with(num_pages=10, max_model_len=40)
    name = waiting(driver)
    arrive(driver, name, 7)
    driver.run()
    assert num_promoted(driver) == 5
    arrive(driver, name, 8)
    driver.run()
    assert driver.answers[name].sources == {"l3": 32, "computed:partial_page": 1}


@pytest.mark.parametrize("stage", STAGES)
def test_promotion_gives_way_to_a_request_that_can_run(stage: str) -> None:
    driver = driver_with(num_pages=10, max_model_len=40)
    name = promoting(driver, stage)
    other = driver.submit(list(range(500, 538)), max_tokens=2)
    driver.run()
    assert driver.answers[other].ending == "length"
    assert name not in driver.answers
    arrive(driver, name, 8)
    driver.run()
    assert driver.answers[name].ending == "length"
    require_all_given_back(driver)


def test_promotion_gives_way_to_the_output_of_a_running_request() -> None:
    driver = driver_with(num_pages=16, max_model_len=64)
    other = driver.submit(list(range(500, 516)), max_tokens=47)
    driver.host_turn()
    driver.step()
    name = waiting(driver)
    arrive(driver, name, 3)
    driver.step()
    driver.host_turn()
    driver.finish_copies()
    assert num_promoted(driver) == 3
    driver.run()
    assert driver.answers[other].ending == "length"
    assert not driver.core.stats().get("retracted_requests")
    driver.report_lookup(name, [PageSource.IO_ERROR] * NUM_PAGES)
    driver.run()
    require_all_given_back(driver)


def test_lease_that_comes_after_its_promotion_has_ended_goes_back() -> None:
    driver = driver_with()
    name = promoting(driver, "leasing")
    [lease] = [message for message in driver.to_host if isinstance(message, host.LeasePages)]
    driver.to_host.clear()
    driver.abort(name)
    pages = int32_array(range(3))
    driver.hear_host(
        host.PagesLeased(lease_id=lease.lease_id, host_page_ids=(pages,), generations=(pages,))
    )
    [released] = [message for message in driver.to_host if isinstance(message, host.ReleaseLeases)]
    assert released.lease_ids == (lease.lease_id,)


def test_lease_of_a_part_that_went_with_its_rank_is_nobodys() -> None:
    driver = driver_with()
    name = waiting(driver)
    arrive(driver, name, 3)
    lease = next(message for message in driver.to_host if isinstance(message, host.LeasePages))
    driver.lose_rank(0)
    driver.to_host.clear()
    pages = int32_array(range(3))
    driver.hear_host(
        host.PagesLeased(lease_id=lease.lease_id, host_page_ids=(pages,), generations=(pages,))
    )
    [released] = [message for message in driver.to_host if isinstance(message, host.ReleaseLeases)]
    assert released.lease_ids == (lease.lease_id,)


def test_part_that_went_with_its_rank_is_not_given_back_when_its_lease_is_given_up() -> None:
    driver = driver_with()
    arrive(driver, waiting(driver), 3)
    driver.lose_rank(0)
    driver.attach_rank(0, incarnation=2)
    driver.wait(101.0)
    assert driver.core.stats()["host_silences"] == 1


def test_pipeline_on_slow_storage_with_the_real_host_memory() -> None:
    cluster = cluster_with(Faults(storage_s=0.3, copy_s=0.01), max_read_batches=1)
    serve(cluster, "cold", PAGES)
    flush(cluster)
    ask(cluster, "warm", PAGES)
    cluster.run(lambda: cluster.core.stats().get("promoted_pages", 0) > 0)
    assert cluster.answers["warm"].sources is None, "it still waits"  # type: ignore[index]
    # A slow storage is asked how slow it is, time and again: no moment is sure to be a quiet one.
    cluster.run(lambda: cluster.answers["warm"].ending is not None)  # type: ignore[index]
    sources = cluster.answers["warm"].sources  # type: ignore[index]
    assert sources == {"l3": 40, "computed:partial_page": 1}


def test_what_is_reserved_for_others_gives_way_to_a_request_that_is_here() -> None:
    driver = driver_with(num_pages=24)
    expected = ExpectRequest(
        asking=AskingId(driver.new_asking("foretold")),
        token_ids=int32_array([5] * 49),
        within_s=60.0,
    )
    driver.send(events.ClientMessage(client_id=ClientId("other"), message=expected))
    assert driver.core.stats()["l1_reserved_pages"] == 12
    name = waiting(driver)
    arrive(driver, name, 6)
    driver.run()
    assert num_promoted(driver) == 6
    assert driver.core.stats()["l1_reserved_pages"] == 0
