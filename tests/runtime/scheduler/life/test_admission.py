"""Who runs next, in which chunks, and what is loaded instead of computed."""

from typing import Any

import pytest

from raydix.runtime.config.policies import LoadPolicy, SchedulingPolicy
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.plan import TransfersDone
from raydix.runtime.scheduler.life.load_choice import Assessment, LoadChoice
from tests.runtime.scheduler.core_driver import CoreDriver


def tokens(start: int, count: int) -> list[int]:
    """A prompt that shares nothing with one of another start."""
    return list(range(start, start + count))


def test_one_token_prompt_runs_alone() -> None:
    driver = CoreDriver()
    name = driver.submit([7], max_tokens=2)
    driver.run()
    assert driver.answers[name].tokens == [1, 1]
    assert driver.answers[name].ending == "length"


def test_fully_cached_prompt_computes_one_token_and_writes_to_the_padding_page() -> None:
    driver = CoreDriver()
    driver.submit(tokens(0, 8), max_tokens=1)
    driver.run()
    second = driver.submit(tokens(0, 8), max_tokens=1)
    plan = driver.step()
    assert driver.rows(plan) == {second: 1}
    assert plan.row_starts.tolist() == [7]
    assert plan.row_write_starts.tolist() == [8], (
        "the last token's keys and values are there already"
    )
    assert driver.answers[second].sources == {"l1": 7, "computed:last_token": 1}


def test_a_page_is_taken_only_when_the_last_one_is_full() -> None:
    driver = CoreDriver(page_size=4)
    driver.submit(tokens(0, 5), max_tokens=1)
    driver.run()
    driver.submit(tokens(0, 11), max_tokens=12)
    plans = [driver.step() for _ in range(12)]
    new_pages = [sum(int(changes.counts.sum()) for changes in plan.tables) for plan in plans]
    starts = [int(plan.row_starts[0]) for plan in plans]
    assert (starts[0], new_pages[0]) == (4, 3), "one cached page, and pages for seven tokens"
    assert new_pages[1:] == [int(start % 4 == 0) for start in starts[1:]]
    assert sum(new_pages[1:]) == 3


def test_chunks_end_on_pages_and_others_join_the_last_one_whole() -> None:
    driver = CoreDriver(
        page_size=64,
        num_pages=(64,),
        max_model_len=4096,
        prefill_budget_tokens=512,
        policy=SchedulingPolicy.FCFS,
        start_prefill_s=1.0,
    )
    first = driver.submit(tokens(0, 1300), max_tokens=1)
    second = driver.submit(tokens(5000, 190), max_tokens=1)
    third = driver.submit(tokens(9000, 100), max_tokens=1)
    plans = [driver.rows(driver.step()) for _ in range(4)]
    assert plans == [{first: 512}, {first: 512}, {first: 276, second: 190}, {third: 100}]


def test_cached_pages_that_no_step_on_its_way_names_are_free_at_once() -> None:
    driver = CoreDriver(page_size=4, num_pages=(32,), prefill_budget_tokens=64, start_prefill_s=1.0)
    for start in range(0, 4000, 100):
        driver.submit(tokens(start, 4), max_tokens=1)
        driver.run()
    decoding = driver.submit(tokens(4000, 4), max_tokens=30)
    driver.step()
    assert len(driver.plans[0]) == 2, "one runs, one is queued behind it"

    prompts = [driver.submit(tokens(start, 16), max_tokens=1) for start in (5000, 6000)]
    driver.step()

    assert driver.core._lanes[0].l1.num_free() == (0,)
    assert driver.rows(driver.plans[0][-1]) == {decoding: 1, prompts[0]: 16, prompts[1]: 16}


def test_later_chunks_do_not_wait_for_evicted_pages_to_leave_quarantine() -> None:
    driver = CoreDriver(page_size=4, num_pages=(32,), prefill_budget_tokens=16)
    for start in range(0, 4000, 100):
        driver.submit(tokens(start, 4), max_tokens=1)
        driver.run()
    long = driver.submit(tokens(5000, 40), max_tokens=1)
    assert [driver.rows(plan) for plan in driver.plans[0]] == [{long: 16}, {long: 16}]
    driver.step()
    assert [driver.rows(plan) for plan in driver.plans[0]] == [{long: 16}, {long: 8}]


def test_whole_prompt_above_the_budget_runs_although_others_decode() -> None:
    driver = CoreDriver(chunked_prefill=False)
    driver.submit(tokens(0, 4), max_tokens=50)
    driver.step()
    long = driver.submit(tokens(100, 40), max_tokens=1)
    plans = [driver.rows(driver.step()) for _ in range(4)]
    assert any(rows.get(long) == 40 for rows in plans)


def test_lpm_orders_by_l1_and_mirror() -> None:
    driver = CoreDriver(max_running_requests=1, has_host_memory=True)
    driver.submit(tokens(300, 8), max_tokens=1)
    driver.run()
    driver.fill_l2(tokens(200, 12))
    blocker = driver.submit(tokens(0, 4), max_tokens=3)
    driver.host_turn()
    none = driver.submit(tokens(100, 13), max_tokens=1)
    in_l1 = driver.submit(tokens(300, 13), max_tokens=1)
    in_l2 = driver.submit(tokens(200, 13), max_tokens=1)
    driver.run()
    assert [name for name in driver.answers if name != "r1"] == [blocker, in_l2, in_l1, none]


@pytest.mark.parametrize("num_waiting", [128, 129, 300])
def test_lpm_works_with_any_number_waiting(num_waiting: int) -> None:
    driver = CoreDriver(max_running_requests=1)
    driver.submit(tokens(1_000_000, 8), max_tokens=1)
    driver.run()
    blocker = driver.submit(tokens(0, 4), max_tokens=5)
    for index in range(num_waiting):
        driver.submit(tokens(100 * (index + 1), 8), max_tokens=1)
    cached = driver.submit(tokens(1_000_000, 12), max_tokens=1)
    while len(driver.answers) < 4:
        driver.step()
    assert list(driver.answers)[1:3] == [blocker, cached]


def test_a_turn_looks_at_a_bounded_part_of_a_queue_of_which_l2_is_lost() -> None:
    driver = CoreDriver(is_attached=False, has_host_memory=True, lpm_span_s=1000.0)
    prompts = [tokens(100 * index, 5) for index in range(300)]
    for prompt in prompts:
        driver.fill_l2(prompt)
    for prompt in prompts:
        driver.submit(prompt, max_tokens=1)
    waiting = driver.core._lanes[0].waiting
    assert all(waiting.num_cached_pages(request) for request in waiting.requests.values())
    driver.lose_host()
    driver.attach_rank(0)
    moved = [
        request for request in waiting.requests.values() if not waiting.num_cached_pages(request)
    ]
    assert 0 < len(moved) < 100

    # The others are looked at by the next ticks, and all are served.
    driver.wait(0.0)
    driver.run()
    assert {answer.ending for answer in driver.answers.values()} == {"length"}
    assert len(driver.answers) == 300


def test_a_turn_looks_at_fewer_waiting_requests_of_long_prompts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver = CoreDriver(
        is_attached=False,
        page_size=1,
        max_model_len=9000,
        num_pages=(20_000,),
        max_running_requests=16,
        prefill_budget_tokens=100_000,
    )
    shared = tokens(0, 8192)
    for index in range(12):
        driver.submit([*shared, 10_000 + index], max_tokens=1)
    driver.wait(0.0)
    counts: list[int] = []
    assess = LoadChoice.assess

    def count(*arguments: Any) -> Assessment:
        counts[-1] += 1
        return assess(*arguments)

    monkeypatch.setattr(LoadChoice, "assess", count)
    counts.append(0)
    driver.attach_rank(0)
    while driver.core.next_deadline_s() == driver.now_s:
        counts.append(0)
        driver.send_tick()
    # The first one runs, the others follow it: two for each of two plans.
    assert sum(counts) == 12
    assert max(counts) <= 5


def test_shared_prefix_is_computed_once() -> None:
    driver = CoreDriver(
        page_size=4,
        num_pages=(400,),
        max_model_len=1200,
        prefill_budget_tokens=4096,
        max_running_requests=16,
    )
    shared = tokens(0, 1000)
    names = [driver.submit([*shared, 5000 + index], max_tokens=1) for index in range(10)]
    first = driver.step()
    assert driver.rows(first) == {names[0]: 1001}
    second = driver.step()

    assert driver.rows(second) == dict.fromkeys(names[1:], 1)
    assert all(
        driver.answers[name].sources == {"l1": 1000, "computed:partial_page": 1}
        for name in names[1:]
    )


@pytest.mark.parametrize("ending", ["abort", "lost rank"])
def test_request_that_waits_for_anothers_pages_computes_them_when_that_one_ends(
    ending: str,
) -> None:
    driver = CoreDriver(prefill_budget_tokens=8)
    first = driver.submit(tokens(0, 24), max_tokens=1)
    second = driver.submit(tokens(0, 24), max_tokens=1)
    assert second not in driver.rows(driver.step())
    if ending == "abort":
        driver.abort(first)
    else:
        driver.lose_rank(0)
        driver.attach_rank(0, incarnation=2)
    driver.run()

    assert driver.answers[second].ending == "length"
    assert driver.answers[first].ending == ("abort" if ending == "abort" else "length")


def test_low_priority_numbers_run_first() -> None:
    driver = CoreDriver(max_running_requests=1)
    driver.submit(tokens(0, 4), max_tokens=2)
    for priority in (1, 0, -1):
        driver.submit(
            tokens(100 * (priority + 2), 4), max_tokens=1, priority=priority, name=f"p{priority}"
        )
    driver.run()
    assert list(driver.answers)[1:] == ["p-1", "p0", "p1"]


def test_ageing_prevents_starvation() -> None:
    driver = CoreDriver(max_running_requests=1, ageing_s=10.0)
    driver.submit(tokens(0, 4), max_tokens=1)
    driver.submit(tokens(100, 4), max_tokens=1, priority=1, name="patient")
    driver.now_s = 21.0
    driver.submit(tokens(200, 4), max_tokens=1, priority=0, name="urgent")
    driver.run()
    assert list(driver.answers)[1:] == ["patient", "urgent"]


def test_auto_loads_only_when_that_is_faster_than_computing() -> None:
    prompt = tokens(0, 17)
    for bytes_per_s, expected in ((1e9, "l2"), (1e3, "computed:recompute_cheaper")):
        driver = CoreDriver(
            has_host_memory=True, load=LoadPolicy.AUTO, start_load_bytes_per_s=bytes_per_s
        )
        driver.fill_l2(prompt)
        name = driver.submit(prompt, max_tokens=1)
        driver.run()
        assert driver.answers[name].sources == {expected: 16, "computed:partial_page": 1}
        decisions = {
            decision: driver.core.stats().get(f"{decision}_decisions", 0)
            for decision in ("load", "recompute")
        }
        assert decisions == {"load": int(expected == "l2"), "recompute": int(expected != "l2")}


def test_predictions_are_counted_beside_what_was_measured() -> None:
    prompt = tokens(0, 17)
    driver = CoreDriver(
        has_host_memory=True, start_prefill_tokens_per_s=1000.0, start_load_bytes_per_s=1e6
    )
    driver.submit(tokens(100, 16), max_tokens=1)
    driver.host_turn()
    driver.step()
    driver.fill_l2(prompt)
    driver.submit(prompt, max_tokens=1)
    driver.host_turn()
    loads = int32_array(driver.plans[0][-1].loads.transfer_ids[:1])
    driver.report(0, TransfersDone(rank=0, transfer_ids=loads, num_bytes=1_000_000, seconds=0.25))
    stats = driver.core.stats()

    assert [
        stats[f"prefill_{part}_s"] for part in ("predicted", "measured", "error")
    ] == pytest.approx([0.016, 0.01, 0.006])
    assert [stats[f"load_{part}_s"] for part in ("predicted", "measured", "error")] == [
        1.0,
        0.25,
        0.75,
    ]
    assert stats["predicted_prefills"] == stats["predicted_loads"] == 1


def test_load_is_all_or_nothing() -> None:
    prompt = tokens(0, 17)
    driver = CoreDriver(has_host_memory=True, load=LoadPolicy.NEVER)
    driver.fill_l2(prompt[:8])
    name = driver.submit(prompt, max_tokens=1)
    driver.run()
    sources = {"computed:recompute_cheaper": 8, "computed:not_found": 8, "computed:partial_page": 1}
    assert driver.answers[name].sources == sources
    assert not driver.core.stats().get("loaded_pages")


def test_failed_admission_is_no_hit() -> None:
    driver = CoreDriver(num_pages=(12,), max_model_len=48, has_host_memory=True)
    driver.submit(tokens(0, 8), max_tokens=1)
    driver.run()
    driver.submit(tokens(500, 30), max_tokens=10)
    driver.host_turn()
    driver.submit(tokens(0, 40), max_tokens=1, name="waits")
    for _ in range(5):
        driver.send_tick()
    assert "waits" not in driver.answers
    assert driver.num_hits(tokens(0, 8)) == 1


def test_admission_does_not_count_its_own_prefix_as_room() -> None:
    driver = CoreDriver(num_pages=(16,), max_model_len=64)
    cached = tokens(0, 32)
    driver.submit(cached, max_tokens=1)
    driver.run()
    driver.submit(tokens(500, 16), max_tokens=12, name="running")
    driver.step()
    driver.submit([*cached, *tokens(900, 8)], max_tokens=8, name="cached")
    driver.run()
    assert driver.answers["cached"].ending == driver.answers["running"].ending == "length"
    assert not driver.core.stats().get("retracted_requests")


def test_match_grows_while_a_prompt_is_published_in_chunks() -> None:
    driver = CoreDriver(prefill_budget_tokens=4)
    first = driver.submit(tokens(0, 12), max_tokens=2)
    for num_published in (1, 2, 3):
        driver.step()
        assert driver.core.stats()["l1_cached_pages"] == num_published
    assert driver.num_hits(tokens(0, 12)) == 1, "publishing page by page is one use"
    second = driver.submit(tokens(0, 13), max_tokens=1)
    driver.run()
    assert driver.answers[first].ending == driver.answers[second].ending == "length"
    assert driver.answers[second].sources == {"l1": 12, "computed:partial_page": 1}


def test_duplicate_pages_are_given_back_and_the_table_points_at_the_trees() -> None:
    driver = CoreDriver(prefill_budget_tokens=4)
    driver.token_of = lambda name, position: 4 + position  # type: ignore[method-assign]
    driver.submit(tokens(0, 4), max_tokens=11, name="grows")
    driver.submit(tokens(0, 12), max_tokens=1, name="prompt")
    request = driver.core._requests.living["grows"]  # type: ignore[index]
    tree = driver.core._lanes[0].l1.tree
    sent: set[int] = set()
    while request.num_held_pages < 3:
        plan = driver.step()
        sent.update(page for changes in plan.tables for page in changes.page_ids.tolist())
    assert driver.answers["grows"].tokens == tokens(4, 11)[: len(driver.answers["grows"].tokens)]
    match = driver.core._lanes[0].match(request.chain)
    assert request.table.pages(0, 3)[0].tolist() == match.page_ids[0].tolist()[:3]
    driver.run()

    assert tree.num_cached_pages(0) == 3, "both computed the same pages; one copy of each is left"
    assert driver.core.stats()["l1_used_pages"] == 3
    assert len(sent) > 3, "each had pages of its own"
