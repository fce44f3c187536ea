"""Loads and backups: what they hold, and what their acknowledgement means."""

import itertools

import pytest

from raydix.runtime.cache.page_key import split_keys
from raydix.runtime.config.policies import WritePolicy
from raydix.runtime.messages import host
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.host import StorageStatus
from raydix.runtime.messages.plan import StepPlan, StepResult, TransfersDone
from raydix.runtime.scheduler import events
from raydix.runtime.scheduler.pages import backups
from raydix.runtime.scheduler.ranks.column_ids import MAX_ID
from tests.runtime.scheduler.core_driver import BASE, CoreDriver
from tests.runtime.scheduler.l2_driver import OTHER, PROMPT, driver_with, evict_from_l1, serve


def test_evicted_page_is_loaded_back_and_not_copied_again() -> None:
    driver = driver_with()
    serve(driver, PROMPT)
    num_backed_up = driver.core.stats()["backed_up_pages"]
    for _ in range(2):
        evict_from_l1(driver)
        name = serve(driver, PROMPT)
        assert driver.answers[name].sources == {"l2": 16, "computed:partial_page": 1}
    assert driver.core.stats()["backed_up_pages"] == num_backed_up
    assert driver.core.stats()["loaded_pages"] == 8


def test_page_that_l2_lost_is_backed_up_again_before_it_is_evicted() -> None:
    driver = driver_with(num_pages=(32,))
    serve(driver, PROMPT)
    driver.drop_from_l2(driver.keys(PROMPT))
    for start in range(100, 900, 100):
        serve(driver, list(range(start, start + 17)))
    assert driver.ready >= set(split_keys(driver.keys(PROMPT)))
    assert not driver.core.stats().get("dropped_pages")


def test_a_clean_stop_copies_all_that_write_back_has_put_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backups, "_MAX_DIRTY_PAGES", 3)
    driver = driver_with(WritePolicy.WRITE_BACK, num_pages=(200,))
    prompts = [list(range(start, start + 17)) for start in range(0, 1000, 100)]
    for prompt in prompts:
        serve(driver, prompt)
    assert not driver.ready

    driver.send(events.RefuseRequests())
    driver.send(events.EndRequests())
    driver.send(events.BackUpL1())
    driver.run()

    assert driver.core.is_backed_up
    assert driver.ready == {key for each in prompts for key in split_keys(driver.keys(each))}
    assert not driver.core.stats().get("backup_queue_full")


def test_node_split_while_its_backup_is_in_flight_is_in_l2_whole() -> None:
    driver = driver_with()
    driver.submit(PROMPT, max_tokens=1)
    driver.host_turn()
    driver.step()
    assert driver.core.stats()["transfers_in_flight"] == 1
    driver.submit([*PROMPT[:8], *OTHER], max_tokens=1)
    driver.host_turn()
    driver.run()
    both = split_keys(driver.keys(PROMPT)) + split_keys(driver.keys([*PROMPT[:8], *OTHER]))
    assert driver.ready == set(both)


def load_in_flight(driver: CoreDriver) -> tuple[str, StepPlan]:
    """A request whose load was sent and is not acknowledged."""
    driver.fill_l2(PROMPT)
    name = driver.submit(PROMPT, max_tokens=4)
    driver.host_turn()
    plan = driver.plans[0][0]
    assert len(plan.loads) == 4
    return name, plan


def test_pages_of_a_load_in_flight_are_not_handed_out_after_an_abort() -> None:
    driver = driver_with(num_pages=(8,), max_model_len=32)
    name, plan = load_in_flight(driver)
    before = list(driver.plans[0])
    driver.abort(name)
    driver.host_turn()
    assert driver.leases, "the host pages stay pinned too"
    driver.submit(OTHER, max_tokens=1, name="next")
    driver.host_turn()
    assert driver.plans[0]
    while driver.plans[0]:
        sent = driver.step()
        if any(sent is earlier for earlier in before):
            continue
        used = {page for changes in sent.tables for page in changes.page_ids.tolist()}
        assert not used & set(plan.loads.page_ids.tolist())
    driver.run()

    assert driver.answers["next"].ending == "length"
    assert not driver.leases


def test_row_that_joins_its_load_names_it() -> None:
    driver = driver_with(start_prefill_tokens_per_s=1.0)
    _, plan = load_in_flight(driver)
    rows = plan if len(plan.row_loads) else driver.plans[0][1]
    assert rows.row_loads.tolist() == [plan.loads.transfer_ids[0]]
    assert rows.row_starts.tolist() == [16]


def test_row_does_not_join_a_load_that_outlasts_it() -> None:
    driver = driver_with(start_load_bytes_per_s=1.0)
    load_in_flight(driver)
    while driver.plans[0]:
        assert not len(driver.step().row_slots)
    driver.finish_copies()
    rows = driver.plans[0][0]
    assert rows.row_starts.tolist() == [16]
    assert rows.row_loads.tolist() == [-1]


def test_nothing_counts_before_its_load_is_confirmed() -> None:
    driver = driver_with(start_prefill_tokens_per_s=1.0)
    name, _ = load_in_flight(driver)
    while driver.plans[0]:
        driver.step()
    assert name not in driver.answers
    driver.finish_copies()
    assert len(driver.answers[name].tokens) >= 1
    driver.run()
    assert driver.answers[name].tokens == [1] * 4


def test_stale_load_is_counted_and_the_request_starts_over() -> None:
    driver = driver_with(start_prefill_tokens_per_s=1.0)
    name, _ = load_in_flight(driver)
    driver.step(token=5)
    driver.drop_from_l2(driver.keys(PROMPT))
    driver.finish_copies(is_stale=True)
    assert driver.core.stats()["stale_loads"] == 1
    while driver.plans[0]:
        driver.step(token=6 if name not in driver.answers else 1)
    driver.run()

    assert 5 not in driver.answers[name].tokens
    assert len(driver.answers[name].tokens) == 4
    assert driver.answers[name].sources is not None
    assert "l2" not in driver.answers[name].sources
    assert not driver.leases


def test_lease_of_fewer_pages_loads_those_and_computes_the_rest() -> None:
    driver = driver_with()
    driver.fill_l2(PROMPT)
    driver.ready.difference_update(
        split_keys(driver.keys(PROMPT))[2:]
    )  # dropped, and the mirror lags behind
    name = driver.submit(PROMPT, max_tokens=1)
    driver.host_turn()
    driver.run()
    assert driver.answers[name].sources == {
        "l2": 8,
        "computed:not_found": 8,
        "computed:partial_page": 1,
    }


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_transfer_counts_once_every_rank_has_done_it(num_ranks: int) -> None:
    driver = driver_with(ranks_per_lane=num_ranks)
    driver.submit(PROMPT, max_tokens=1)
    driver.host_turn()
    driver.step()
    transfer = int32_array(driver.plans[0][-1].backups.transfer_ids[:1])
    for rank in range(num_ranks):
        assert not [message for message in driver.to_host if isinstance(message, host.CommitPages)]
        driver.report(rank, TransfersDone(rank=rank, transfer_ids=transfer))
    assert [message for message in driver.to_host if isinstance(message, host.CommitPages)]


def test_step_counts_once_every_rank_has_done_it() -> None:
    driver = CoreDriver(ranks_per_lane=2)
    name = driver.submit([1, 2, 3], max_tokens=1)
    plan = driver.plans[0].popleft()
    driver.report(1, StepResult(rank=1, step=plan.step))
    assert name not in driver.answers
    driver.report(0, StepResult(rank=0, step=plan.step, token_ids=int32_array((4,))))
    assert driver.answers[name].tokens == [4]


def test_step_is_sent_when_its_load_is_about_to_end_without_waiting_for_the_report() -> None:
    driver = CoreDriver(
        has_host_memory=True, start_load_bytes_per_s=8 * BASE.layout.payload_bytes(0), launch_s=0.1
    )
    prompt = list(range(33))
    driver.fill_l2(prompt)
    driver.submit(prompt, max_tokens=1)
    driver.host_turn()
    assert [len(plan.loads) for plan in driver.plans[0]] == [8], "8 pages take a second"
    driver.wait(0.85)
    assert not any(len(plan.row_slots) for plan in driver.plans[0])
    driver.wait(0.1)
    assert [len(plan.row_slots) for plan in driver.plans[0]] == [0, 1]


def test_nobody_waits_for_storage_that_is_not_there() -> None:
    driver = CoreDriver(has_host_memory=True)
    driver.hear_host(StorageStatus(is_in_use=False, max_staged_pages=(0,)))
    name = driver.submit(list(range(9)), max_tokens=1)
    assert any(len(plan.row_slots) for plan in driver.plans[0]), "its lookup is still unanswered"
    driver.run()
    assert driver.answers[name].sources == {"computed:not_found": 8, "computed:partial_page": 1}


def test_row_is_sent_at_the_first_tick_that_its_load_asked_for() -> None:
    for start_s in range(1, 60):
        driver = CoreDriver(
            has_host_memory=True, start_load_bytes_per_s=8 * BASE.layout.payload_bytes(0)
        )
        driver.fill_l2(PROMPT)
        driver.now_s = start_s / 7
        driver.submit(PROMPT, max_tokens=1)
        driver.host_turn()
        num_ticks = 0

        while not any(len(plan.row_slots) for plan in driver.plans[0]):
            due_s = driver.core.next_deadline_s()
            assert due_s is not None
            assert num_ticks < 3, (
                "the time that it asked for has come, and it asks for the same again"
            )
            num_ticks += 1
            driver.now_s = max(driver.now_s, due_s)
            driver.send_tick()


def test_transfer_ids_start_over_before_they_outgrow_their_column() -> None:
    driver = CoreDriver(has_host_memory=True)
    lane = driver.core._lanes[0]
    lane.in_flight._ids = itertools.count(MAX_ID)
    for start in range(6):
        driver.submit([start] * 13, max_tokens=1)
        driver.run()
    assert lane.in_flight.new_transfer_id() < 100
    assert all(answer.ending == "length" for answer in driver.answers.values())


def test_transfer_id_that_is_in_flight_is_not_given_again() -> None:
    driver = CoreDriver(has_host_memory=True)
    driver.submit([1] * 13, max_tokens=1)
    driver.host_turn()
    driver.step()
    lane = driver.core._lanes[0]
    (in_flight,) = lane.in_flight.transfers
    lane.in_flight._ids = itertools.count(MAX_ID + in_flight)
    assert lane.in_flight.new_transfer_id() == in_flight + 1


def test_tokens_that_were_computed_before_their_load_was_reported_all_count() -> None:
    driver = driver_with()
    driver.token_of = lambda name, position: position  # type: ignore[method-assign]
    driver.fill_l2(PROMPT)
    name = driver.submit(PROMPT, max_tokens=6)
    driver.host_turn()
    while driver.plans[0]:
        driver.step()
    assert name not in driver.answers, "nothing counts until the load is confirmed"
    driver.run()
    assert driver.answers[name].tokens == list(range(6))
    assert driver.answers[name].ending == "length"


def device_tables(plans: list[StepPlan]) -> dict[int, dict[int, int]]:
    """Block tables by slot, as a device has them after these plans."""
    tables: dict[int, dict[int, int]] = {}
    for changes in (changes for plan in plans for changes in plan.tables):
        pages = iter(changes.page_ids.tolist())
        for slot, start, count in zip(changes.slots, changes.starts, changes.counts, strict=True):
            entries = {int(start) + index: next(pages) for index in range(count)}
            tables.setdefault(int(slot), {}).update(entries)
    return tables


def test_device_hears_that_its_page_is_a_duplicate_when_the_request_begins_to_decode_with_it() -> (
    None
):
    driver = CoreDriver(prefill_budget_tokens=4)
    names = [driver.submit([1, 2, 3, 4, 5, 6], max_tokens=9) for _ in range(2)]
    while names[1] not in driver.answers or len(driver.answers[names[1]].tokens) < 2:
        driver.step()
    driver.lose_rank(0)
    driver.attach_rank(0, incarnation=2)

    # Both compute the page of the last prompt tokens and the first output: for that nobody waits.
    lane = driver.core._lanes[0]
    plans: list[StepPlan] = []
    for _ in range(8):
        plans.append(driver.step())
        tables = device_tables([*plans, *driver.plans[0]])
        for request in lane.running.values():
            if request.is_decoding:
                assert list(tables[request.slot].values()) == request.table.pages(0)[0].tolist()
