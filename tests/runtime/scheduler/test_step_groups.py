"""Lanes that share experts: planned together, under one step number, and lost together."""

from dataclasses import replace

import pytest

from raydix.errors import AccountingError
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.host import AbandonPages
from raydix.runtime.messages.plan import DeviceSampling, StepResult
from raydix.runtime.scheduler import events
from tests.runtime.scheduler.core_driver import CoreDriver

PROMPT = list(range(9))


def group_driver(**changes: object) -> CoreDriver:
    """Two lanes in one step group."""
    return CoreDriver(**{"num_lanes": 2, "lanes_per_group": 2, **changes})


def prompt(index: int, num_tokens: int = 9) -> list[int]:
    """Prompts that share nothing."""
    return list(range(1000 * index, 1000 * index + num_tokens))


def lane_of(driver: CoreDriver, name: str) -> int:
    """The lane that a request waits or runs on."""
    lanes = driver.core._lanes
    found = [lane for lane in lanes if name in lane.running or name in lane.waiting.requests]
    return found[0].index


def step_all(driver: CoreDriver) -> None:
    """Every lane carries out its oldest plan."""
    for lane, plans in enumerate(driver.plans):
        if plans:
            driver.step(lane)


def test_lanes_get_each_step_under_one_number_with_the_counts_of_all() -> None:
    driver = group_driver()
    driver.submit(prompt(1, 9))
    driver.submit(prompt(2, 5))
    while not all(len(plan.row_slots) for plans in driver.plans for plan in list(plans)[-1:]):
        step_all(driver)
    first, second = (plans[-1] for plans in driver.plans)
    assert first.step == second.step
    assert first.group_rows.tolist() == second.group_rows.tolist() == [1, 1]
    assert first.group_tokens.tolist() == second.group_tokens.tolist() == [1, 5]


def test_idle_lane_gets_a_plan_without_rows() -> None:
    driver = group_driver()
    driver.submit(PROMPT)
    busy, idle = driver.plans[0][0], driver.plans[1][0]
    assert (busy.step, idle.step) == (1, 1)
    assert len(idle.row_slots) == 0
    assert idle.group_rows.tolist() == [1, 0]
    assert idle.group_tokens.tolist() == [9, 0]


def test_lane_that_steps_alone_is_told_of_no_group() -> None:
    driver = CoreDriver(num_lanes=2)
    driver.submit(PROMPT)
    assert len(driver.plans[0][0].group_tokens) == 0
    assert not driver.plans[1]


def test_next_step_waits_until_every_lane_has_done_the_oldest() -> None:
    driver = group_driver()
    driver.submit(PROMPT, max_tokens=8)
    driver.submit(prompt(1), max_tokens=8)
    assert [len(plans) for plans in driver.plans] == [2, 2]
    driver.step(0)
    assert [len(plans) for plans in driver.plans] == [1, 2]
    driver.step(1)
    assert [len(plans) for plans in driver.plans] == [2, 2]


def test_copies_alone_make_a_step_without_tokens_for_all_lanes() -> None:
    driver = group_driver(has_host_memory=True)
    driver.submit(PROMPT, max_tokens=1)
    driver.host_turn()
    while driver.plans[0] and not len(driver.plans[0][0].backups):
        step_all(driver)
    mover, idle = driver.plans[0][0], driver.plans[1][0]
    assert len(mover.backups) == 2
    assert mover.step == idle.step
    assert mover.group_tokens.tolist() == idle.group_tokens.tolist() == [0, 0]
    assert len(idle.backups) == 0


def test_backups_of_an_idle_lane_go_with_the_rows_of_another() -> None:
    driver = group_driver(has_host_memory=True)
    driver.submit(PROMPT, max_tokens=1)
    driver.submit(prompt(1), max_tokens=40)
    driver.host_turn()
    for _ in range(12):
        step_all(driver)
    driver.finish_copies(0)
    assert driver.core.is_backed_up


def test_group_without_one_of_its_ranks_gets_no_plan() -> None:
    driver = group_driver(is_attached=False)
    driver.attach_rank(0)
    name = driver.submit(PROMPT)
    assert not any(driver.plans)
    driver.attach_rank(1)
    driver.run()
    assert driver.answers[name].ending == "length"


def test_lost_rank_lets_requests_of_all_lanes_wait_again() -> None:
    driver = group_driver()
    names = [driver.submit(prompt(index), max_tokens=6) for index in range(2)]
    assert [lane_of(driver, name) for name in names] == [0, 1]
    for _ in range(3):
        step_all(driver)
    told = [list(driver.answers[name].tokens) for name in names]
    driver.lose_rank(1)

    ended = [(kill.rank, kill.cause) for kill in driver.kills]
    assert ended == [(0, events.KillCause.GROUP_BROKEN), (1, events.KillCause.GROUP_BROKEN)]
    assert driver.core.stats()["num_requests_running"] == 0
    assert driver.core.stats()["ranks_attached"] == 0
    assert not any(driver.plans)
    for rank in (1, 0):
        driver.attach_rank(rank, incarnation=2)
    assert [plans[0].step for plans in driver.plans] == [1, 1]
    driver.run()
    for name, tokens in zip(names, told, strict=True):
        assert tokens
        assert driver.answers[name].tokens == [1] * 6


def test_requests_of_a_lost_group_move_to_another() -> None:
    driver = CoreDriver(num_lanes=4, lanes_per_group=2)
    names = [driver.submit(prompt(index), max_tokens=6) for index in range(4)]
    assert sorted(lane_of(driver, name) for name in names) == [0, 1, 2, 3]
    step_all(driver)
    driver.lose_rank(1)
    assert {lane_of(driver, name) for name in names} == {2, 3}
    assert not driver.plans[0]
    driver.run()
    assert all(driver.answers[name].ending == "length" for name in names)
    assert [kill.rank for kill in driver.kills] == [0, 1]


def test_link_that_breaks_ends_the_generation_on_all_lanes() -> None:
    driver = group_driver()
    name = driver.submit(PROMPT, max_tokens=6)
    step_all(driver)
    driver.lose_rank(0)
    driver.kills.clear()
    driver.attach_rank(0, incarnation=1)
    assert [(kill.rank, kill.incarnation) for kill in driver.kills] == [(0, 1)], "it may not return"
    assert driver.core.stats()["ranks_attached"] == 0

    driver.attach_rank(1, incarnation=2)
    driver.attach_rank(0, incarnation=2)
    driver.run()
    assert driver.answers[name].tokens == [1] * 6


def test_rank_of_a_newer_generation_ends_those_of_the_last_on_other_lanes() -> None:
    driver = group_driver()
    driver.submit(PROMPT, max_tokens=6)
    driver.attach_rank(1, incarnation=2)
    assert {(kill.rank, kill.incarnation) for kill in driver.kills} == {(0, 1), (1, 1)}
    assert driver.core.stats()["ranks_attached"] == 1


def test_hello_anew_of_a_rank_counts_as_the_loss_of_its_group() -> None:
    driver = group_driver()
    driver.submit(PROMPT)
    driver.attach_rank(0, incarnation=1)
    assert driver.core.stats()["ranks_attached"] == 0
    assert driver.core.stats()["lost_ranks"] == 1


def warm_driver(**changes: object) -> CoreDriver:
    """All ranks have done a step, and a request goes on on each lane."""
    driver = group_driver(step_deadline_s=30.0, **changes)
    for index in range(2):
        driver.submit(prompt(index), max_tokens=50)
    for _ in range(3):
        step_all(driver)
    return driver


def test_group_that_has_not_done_a_step_on_every_lane_may_take_for_ever() -> None:
    driver = group_driver(step_deadline_s=30.0)
    driver.submit(PROMPT, max_tokens=50)
    driver.step(0)
    driver.wait(100.0)
    assert not driver.kills
    driver.step(1)
    driver.wait(31.0)
    assert {kill.rank for kill in driver.kills} == {0, 1}


def test_only_the_ranks_that_are_late_with_the_step_of_the_group_are_condemned() -> None:
    driver = warm_driver()
    driver.step(0)
    driver.wait(31.0)
    assert {kill.rank for kill in driver.kills} == {1}
    assert driver.kills[0].cause is events.KillCause.LATE


def test_deadline_is_that_of_the_lane_with_the_most_tokens() -> None:
    slow = {"start_prefill_tokens_per_s": 1.0, "prefill_budget_tokens": 16, "max_model_len": 100}
    driver = warm_driver(**slow)
    names = [name for name in driver.answers if lane_of(driver, name) == 1]
    driver.abort(names[0])
    driver.submit(prompt(5, 16), max_tokens=1)
    while driver.plans[0][0].group_tokens.tolist() != [1, 16]:
        step_all(driver)
    predicted_s = driver.core._rates.prefill.predict_s(16, driver.now_s)
    assert 10 * predicted_s > 31.0, "such a step may take longer than the least deadline"
    driver.step(1)
    driver.wait(31.0)
    assert not driver.kills, "lane 0 has one token, but steps with those of lane 1"
    driver.wait(1000.0)
    assert {kill.rank for kill in driver.kills} == {0}


def test_step_after_a_long_one_is_due_no_later_for_it() -> None:
    slow = {"start_prefill_tokens_per_s": 1.0, "prefill_budget_tokens": 16, "max_model_len": 100}
    driver = warm_driver(**slow)
    driver.submit(prompt(5, 16), max_tokens=1)
    while max(driver.plans[0][0].group_tokens.tolist()) < 16:
        step_all(driver)
    driver.wait(31.0)
    assert not driver.kills, "it may take ten times as long as predicted"
    for _ in range(3):
        step_all(driver)

    driver.wait(31.0)

    assert {kill.rank for kill in driver.kills} == {0, 1}


def test_lane_that_waits_for_one_with_more_tokens_teaches_no_prefill_time() -> None:
    driver = group_driver()
    driver.submit(prompt(0, 16), max_tokens=1)
    driver.submit(prompt(1, 3), max_tokens=1)
    while driver.plans[0][0].group_tokens.tolist() != [0, 3]:
        step_all(driver)
    rate = driver.core._rates.prefill
    before = rate.rate(driver.now_s)
    padding = driver.plans[0].popleft()
    driver.report(0, StepResult(rank=0, step=padding.step, compute_s=9.0))
    assert rate.rate(driver.now_s) == before
    driver.step(1, seconds=0.003)
    assert rate.rate(driver.now_s) != before


def test_lane_whose_requests_hold_all_pages_goes_on_while_another_lane_steps() -> None:
    driver = group_driver(num_pages=(12,), max_model_len=48)
    long = driver.submit(prompt(0, 24), max_tokens=24)
    slow = DeviceSampling(seed=0, num_logprobs=0)
    names = [driver.submit(prompt(i, 10), max_tokens=14, sampling=slow) for i in (1, 2)]
    names.append(driver.submit(prompt(3, 2), max_tokens=22, sampling=slow))
    assert [lane_of(driver, name) for name in (long, *names)] == [0, 1, 1, 1]

    while driver.answers.get(names[0]) is None or driver.answers[names[0]].ending is None:
        assert driver.answers.get(long) is None or driver.answers[long].ending is None
        step_all(driver)
    assert driver.core.stats()["retracted_requests"] == 1, "its pages come after quarantine"
    driver.run()
    assert [driver.answers[name].ending for name in (long, *names)] == ["length"] * 4


def test_killer_is_found_though_requests_of_other_lanes_run_beside_it() -> None:
    driver = group_driver(max_running_requests=4)
    names = [driver.submit(prompt(index), max_tokens=3) for index in range(5)]
    driver.submit(prompt(9), max_tokens=3, name="killer")
    num_losses = 0
    for _ in range(80):
        if not any(driver.plans):
            break
        rows = [driver.rows(plans[0], lane) for lane, plans in enumerate(driver.plans) if plans]
        if any("killer" in row for row in rows):
            driver.lose_rank(1)
            num_losses += 1
            for rank in range(2):
                driver.attach_rank(rank, incarnation=1 + num_losses)
        else:
            step_all(driver)

    assert num_losses == 3
    assert driver.answers["killer"].ending == "EngineDead"
    assert [driver.answers[name].ending for name in names] == ["length"] * 5


def test_suspects_of_a_group_run_one_at_a_time() -> None:
    driver = group_driver(is_attached=False)
    names = [driver.submit(prompt(index), max_tokens=9) for index in range(4)]
    lanes = driver.core._lanes
    for incarnation in (1, 2, 3):
        for rank in range(2):
            driver.attach_rank(rank, incarnation=incarnation)
        if incarnation < 3:
            assert [len(lane.running) for lane in lanes] == [2, 2]
            driver.lose_rank(0)

    assert sum(len(lane.running) for lane in lanes) == 1
    assert not lanes[1].waiting.requests
    driver.run()
    assert [driver.answers[name].ending for name in names] == ["length"] * 4


@pytest.mark.parametrize("ranks_per_lane", [1, 2])
def test_loss_leaves_the_copies_of_each_lane_to_its_own_processes(ranks_per_lane: int) -> None:
    driver = group_driver(has_host_memory=True, ranks_per_lane=ranks_per_lane)
    for index in range(2):
        driver.submit(prompt(index), max_tokens=1)
    driver.host_turn()
    while driver.core.stats()["transfers_in_flight"] < 2:
        step_all(driver)
    driver.lose_rank(0)
    abandoned = [message for message in driver.to_host if isinstance(message, AbandonPages)]
    pids = [100 + rank for rank in range(2 * ranks_per_lane)]
    assert [message.pids for message in abandoned] == [
        tuple(pids[:ranks_per_lane]),
        tuple(pids[ranks_per_lane:]),
    ]


def test_settings_know_the_ranks_of_a_group() -> None:
    driver = group_driver(ranks_per_lane=2)
    assert driver.settings.ranks_per_group == 4
    assert replace(driver.settings, lanes_per_group=1).ranks_per_group == 2
    assert driver.core.stats()["ranks_attached"] == 4


def test_step_result_of_a_padding_step_brings_no_token() -> None:
    driver = group_driver()
    driver.submit(PROMPT)
    step = driver.plans[1].popleft().step
    with pytest.raises(AccountingError, match="0 rows sample"):
        driver.report(1, StepResult(rank=1, step=step, token_ids=int32_array((7,))))


def test_check_finds_lanes_that_do_not_count_steps_together() -> None:
    driver = group_driver()
    driver.submit(PROMPT)
    group = driver.core._step_groups[0]
    group.check([3, 3])
    for last_steps in ([3, 4], [3]):
        with pytest.raises(AccountingError, match="step together"):
            group.check(last_steps)


def test_check_finds_ranks_of_two_incarnations() -> None:
    driver = group_driver()
    group = driver.core._step_groups[0]
    group.attach(1, replace(group.attached[1], incarnation=2))
    with pytest.raises(AccountingError, match="incarnations"):
        driver.core.check()
