"""How requests begin and end, in every state, and what they leave behind."""

from collections.abc import Callable
from functools import partial

import pytest

from raydix.runtime.config.policies import PrefetchStrategy
from raydix.runtime.messages.client import FailureKind
from raydix.runtime.messages.host import Lookup, PageSource
from raydix.runtime.scheduler import events
from raydix.runtime.scheduler.settings import PrefetchSettings
from tests.runtime.scheduler.core_driver import CLIENT, CoreDriver

PROMPT = list(range(20))
Reach = Callable[[CoreDriver], str]


def patient_driver() -> CoreDriver:
    """A driver with L2, where a request waits for its prefetch as long as it takes."""
    prefetch = PrefetchSettings(strategy=PrefetchStrategy.WAIT_COMPLETE)
    return CoreDriver(has_host_memory=True, prefetch=prefetch, lookup_deadline_s=100.0)


def waiting_for_lookup(driver: CoreDriver) -> str:
    return driver.submit(PROMPT)


def waiting_for_prefetch(driver: CoreDriver) -> str:
    name = driver.submit(PROMPT)
    driver.to_host.clear()
    driver.report_lookup(name, [PageSource.L2] * 2 + [PageSource.PENDING] * 3)
    return name


def waiting_for_a_lease(driver: CoreDriver) -> str:
    driver.fill_l2(PROMPT)
    name = driver.submit(PROMPT)
    assert driver.core.stats()["leases_wanted"] == 1
    return name


def loading(driver: CoreDriver) -> str:
    name = waiting_for_a_lease(driver)
    driver.host_turn()
    assert driver.core.stats()["transfers_in_flight"] == 1
    return name


def in_its_first_chunk(driver: CoreDriver) -> str:
    name = driver.submit(PROMPT)
    driver.host_turn()
    assert driver.rows(driver.plans[0][0]) == {name: 16}
    return name


def decoding(driver: CoreDriver) -> str:
    name = in_its_first_chunk(driver)
    for _ in range(3):
        driver.step()
    assert driver.answers[name].tokens
    return name


STATES = [
    waiting_for_lookup,
    waiting_for_prefetch,
    waiting_for_a_lease,
    loading,
    in_its_first_chunk,
    decoding,
]


def require_all_given_back(driver: CoreDriver) -> None:
    """Nothing is held by anybody any more."""
    driver.run()
    stats = driver.core.stats()
    assert driver.core.is_idle
    assert not driver.leases
    assert not stats["l1_locked_pages"]
    assert stats["l1_used_pages"] == stats["l1_cached_pages"]


@pytest.mark.parametrize("reach", STATES)
def test_abort_gives_everything_back(reach: Reach) -> None:
    driver = patient_driver()
    name = reach(driver)
    driver.abort(name)
    assert driver.answers[name].ending == "abort"
    assert sum((driver.answers[name].sources or {}).values()) == len(PROMPT)
    require_all_given_back(driver)


@pytest.mark.parametrize("reach", STATES)
def test_deadline_gives_everything_back(reach: Reach) -> None:
    driver = patient_driver()
    submit = driver.submit
    driver.submit = partial(submit, deadline_s=1.0)  # type: ignore[method-assign]
    name = reach(driver)
    driver.wait(1.1)
    assert driver.answers[name].ending == FailureKind.DEADLINE_EXCEEDED
    require_all_given_back(driver)


@pytest.mark.parametrize("reach", STATES)
def test_vanished_client_is_never_heard_from_nor_written_to(reach: Reach) -> None:
    driver = patient_driver()
    name = reach(driver)
    before = driver.answers.get(name)
    num_tokens = len(before.tokens) if before else 0
    driver.send(events.ClientGone(client_id=CLIENT))
    require_all_given_back(driver)
    after = driver.answers.get(name)
    assert after is None or (after.ending is None and len(after.tokens) == num_tokens)


@pytest.mark.parametrize("reach", STATES)
def test_lost_rank_only_pauses_a_request(reach: Reach) -> None:
    driver = patient_driver()
    name = reach(driver)
    driver.lose_rank(0)
    driver.run()
    assert driver.answers.get(name) is None or driver.answers[name].ending is None
    driver.attach_rank(0, incarnation=2)
    driver.run()
    assert driver.answers[name].tokens == [1, 1, 1, 1]
    require_all_given_back(driver)


def test_lost_rank_moves_requests_to_another_lane() -> None:
    driver = CoreDriver(num_lanes=2)
    name = driver.submit(PROMPT, max_tokens=6)
    lane = 0 if driver.plans[0] else 1
    for _ in range(4):
        driver.step(lane)
    told = len(driver.answers[name].tokens)
    assert told >= 2
    driver.lose_rank(lane)
    plan = driver.plans[1 - lane][0]
    assert len(plan.added[0].token_ids) == len(PROMPT) + told, "it goes on with all tokens so far"
    driver.run()
    assert len(driver.answers[name].tokens) == 6


def test_one_step_ahead_a_late_stop_discards_one_token() -> None:
    driver = CoreDriver()
    name = driver.submit([1, 2, 3], max_tokens=50, stop_token_ids=(9,))
    assert len(driver.plans[0]) == 2, (
        "the second step is sent before the first one's token is known"
    )
    driver.step()
    driver.step(token=9)
    assert driver.answers[name].ending == "stop"
    assert driver.answers[name].tokens == [1, 9]
    assert len(driver.plans[0]) == 1, "a third step was on its way"
    driver.step(token=5)
    assert driver.answers[name].tokens == [1, 9]
    require_all_given_back(driver)


def test_length_is_known_ahead_and_wastes_no_step() -> None:
    driver = CoreDriver()
    name = driver.submit([1, 2, 3], max_tokens=2)
    driver.step()
    driver.step()
    assert driver.answers[name].ending == "length"
    assert not driver.plans[0]


def test_output_ends_with_length_at_the_model_limit() -> None:
    driver = CoreDriver(max_model_len=24)
    name = driver.submit(PROMPT, max_tokens=None)
    driver.run()
    assert driver.answers[name].ending == "length"
    assert len(driver.answers[name].tokens) == 4


def test_each_latency_is_observed_once_for_a_request() -> None:
    driver = CoreDriver()
    driver.submit([1], max_tokens=3)
    for _ in range(3):
        driver.now_s += 1.0
        driver.step()
    stats = driver.core.stats()
    times = [stats[f"{name}_times"] for name in ("first_token", "output_token", "request", "queue")]
    assert [sum(figure["counts"]) for figure in times] == [1, 1, 1, 1]
    assert [figure["sum"] for figure in times] == pytest.approx([1.01, 1.01, 3.03, 0.0])


def test_refusals_are_typed() -> None:
    driver = CoreDriver(max_model_len=24, max_waiting_requests=1, max_running_requests=1)
    driver.submit(list(range(24)), name="too long")
    driver.submit([], name="empty")
    driver.submit([1], name="nothing wanted", max_tokens=0)
    driver.submit([1], name="running")
    driver.submit([1], name="waiting")
    driver.submit([1], name="one too many")
    endings = {name: answer.ending for name, answer in driver.answers.items()}

    assert endings == {
        "too long": "PromptTooLong",
        "empty": "BadRequest",
        "nothing wanted": "BadRequest",
        "one too many": "Overloaded",
    }
    assert driver.answers["one too many"].retry_after_s > 0


def test_request_id_in_use_is_refused_and_the_first_request_goes_on() -> None:
    driver = CoreDriver()
    driver.submit([1, 2], name="same", max_tokens=3)
    driver.submit([3, 4], name="same")
    assert driver.answers.pop("same").ending == "BadRequest"
    driver.run()
    assert driver.answers["same"].tokens == [1, 1, 1]


def test_sessions_break_routing_ties() -> None:
    driver = CoreDriver(num_lanes=3)
    driver.submit(PROMPT, session_id="s", max_tokens=1)
    lane = next(index for index, plans in enumerate(driver.plans) if plans)
    driver.run()
    for start in (100, 200, 300):
        driver.submit(list(range(start, start + 8)), session_id="s", max_tokens=1)
        assert driver.plans[lane], "no lane is busy: the session stays where it was"
        driver.run()


def test_requests_go_where_they_are_answered_soonest() -> None:
    driver = CoreDriver(num_lanes=2)
    driver.submit(PROMPT, max_tokens=1)
    driver.run()
    cached_lane = 0 if driver.core._lanes[0].l1.tree.num_cached_pages(0) else 1
    driver.submit([*PROMPT, 77], max_tokens=1, name="warm")
    assert driver.plans[cached_lane], "a cached prefix is less to compute"
    for index in range(8):
        driver.submit(
            list(range(100 * index + 500, 100 * index + 590)), max_tokens=1, session_id=f"s{index}"
        )
    assert all(driver.plans)


def test_what_l2_holds_is_no_reason_to_queue_behind_others() -> None:
    driver = CoreDriver(num_lanes=2, has_host_memory=True)
    prompt = list(range(40))
    driver.submit(prompt, max_tokens=1)
    driver.run()
    cached_lane = 0 if driver.core._lanes[0].l1.tree.num_cached_pages(0) else 1
    driver.submit([*prompt[:4], *range(500, 520)], max_tokens=1)
    driver.host_turn()
    assert driver.plans[cached_lane]
    driver.submit([*prompt, 77], max_tokens=1)
    driver.host_turn()
    assert len(driver.plans[1 - cached_lane][0].loads) == 10, (
        "loading is sooner than the other lane's queue"
    )


def test_flush_drops_all_but_locked_pages() -> None:
    driver = CoreDriver()
    driver.submit(list(range(500, 516)), max_tokens=1)
    driver.run()
    name = driver.submit(PROMPT, max_tokens=3)
    driver.step()
    driver.step()
    driver.send(events.FlushL1())
    stats = driver.core.stats()
    assert stats["l1_cached_pages"] == stats["l1_locked_pages"] == 5
    driver.run()
    assert driver.answers[name].ending == "length"
    driver.send(events.FlushL1())
    assert driver.core.stats()["l1_used_pages"] == 0
    driver.submit(PROMPT, max_tokens=1, name="later")
    driver.run()

    assert driver.answers["later"].ending == "length"


def test_retraction_takes_worst_priority_then_shortest_output_then_longest_input() -> None:
    order = []
    requests = [
        {"tokens": list(range(8)), "priority": 1},
        {"tokens": list(range(100, 108)), "priority": 0},
        {"tokens": list(range(200, 212)), "priority": 0},
    ]
    driver = CoreDriver(num_pages=(32,), prefill_budget_tokens=64)
    names = []
    for request in requests:
        names.append(driver.submit(max_tokens=60, **request))  # type: ignore[arg-type]
    lane = driver.core._lanes[0]
    while len(order) < 2:
        driver.step()
        order += [name for name in names if name in lane.waiting.requests and name not in order]
    assert order == [names[0], names[2]]
    driver.run()

    assert [len(driver.answers[name].tokens) for name in names] == [60, 60, 60]


def test_lone_request_is_never_retracted() -> None:
    driver = CoreDriver(num_pages=(16,), max_model_len=64)
    for start in (0, 500):
        driver.submit(list(range(start, start + 30)), max_tokens=None, name=str(start))
        driver.run()
        assert len(driver.answers[str(start)].tokens) == 34
    assert not driver.core.stats().get("retracted_requests")


def test_half_computed_prompts_that_hold_all_pages_go_on_one_by_one() -> None:
    driver = CoreDriver(num_pages=(12,), max_model_len=48, prefill_budget_tokens=4)
    for start in (0, 100, 200, 300):
        driver.submit(list(range(start, start + 40)), max_tokens=4, name=str(start))
    driver.run()
    assert all(len(answer.tokens) == 4 for answer in driver.answers.values())
    assert len(driver.answers) == 4


def test_pages_are_conserved_through_a_mixed_load() -> None:
    driver = CoreDriver(num_pages=(16,), max_model_len=64)
    for index in range(20):
        driver.submit(
            [*PROMPT[: index % 17 + 1], *range(900, 900 + index)], max_tokens=index % 7 + 1
        )
        driver.step() if driver.plans[0] else None
        if index % 5 == 4:
            driver.abort(f"r{index}")
        l1 = driver.core._lanes[0].l1
        pool, tree = l1.pools.group(0), l1.tree
        private = sum(
            len(request.table) - request.num_held_pages
            for request in driver.core._lanes[0].running.values()
        )
        assert (
            pool.num_free + pool.num_quarantined + tree.num_cached_pages(0) + private
            == pool.num_pages
        )
    require_all_given_back(driver)


def test_explain_names_the_ranges() -> None:
    driver = CoreDriver()
    driver.submit(PROMPT[:8], max_tokens=1)
    driver.run()
    name = driver.submit(PROMPT[:14], max_tokens=1)
    driver.run()
    explained = driver.core.explain(name)  # type: ignore[arg-type]
    assert explained is not None
    assert explained["ranges"] == [
        {"start": 0, "end": 8, "source": "l1"},
        {"start": 8, "end": 12, "source": "computed:not_found"},
        {"start": 12, "end": 14, "source": "computed:partial_page"},
    ]
    assert driver.core.explain("unknown") is None  # type: ignore[arg-type]


def test_page_keys_of_a_long_prompt_are_computed_over_several_events() -> None:
    driver = CoreDriver(
        max_model_len=20_000, num_pages=(6000,), prefill_budget_tokens=16_384, has_host_memory=True
    )
    driver.submit([1] * 12_000)
    driver.send_tick()
    assert not any(isinstance(message, Lookup) for message in driver.to_host), (
        "3,000 keys take three events"
    )
    driver.send_tick()
    assert any(isinstance(message, Lookup) for message in driver.to_host)
    driver.run()
    assert driver.core.is_idle


def test_aborting_a_request_whose_keys_are_being_computed_leaves_nothing() -> None:
    driver = CoreDriver(max_model_len=20_000, num_pages=(6000,), has_host_memory=True)
    name = driver.submit([1] * 12_000)
    driver.abort(name)
    driver.send_tick()
    assert driver.answers[name].ending == "abort"
    assert driver.core.is_idle


def test_a_closing_engine_ends_what_it_has_and_takes_nothing_new() -> None:
    driver = CoreDriver()
    running = in_its_first_chunk(driver)
    driver.send(events.RefuseRequests())
    late = driver.submit(PROMPT)
    assert driver.answers[late].ending == FailureKind.SHUTTING_DOWN.value
    driver.run()
    assert driver.answers[running].ending == "length"


@pytest.mark.parametrize("reach", STATES)
def test_what_has_not_ended_when_the_engine_stops_fails_and_gives_all_back(reach: Reach) -> None:
    driver = patient_driver()
    name = reach(driver)
    driver.send(events.RefuseRequests())
    driver.send(events.EndRequests())
    assert driver.answers[name].ending == FailureKind.SHUTTING_DOWN.value
    require_all_given_back(driver)
