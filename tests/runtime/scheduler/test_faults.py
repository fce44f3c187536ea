"""Dead and silent neighbours: ranks, HostMemory, and what the core does about them."""

from dataclasses import replace
from typing import Any

import pytest

from raydix.ids import ConnectionId
from raydix.runtime.config.policies import PrefetchStrategy
from raydix.runtime.messages import host
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.plan import StepResult, TransfersDone
from raydix.runtime.scheduler import events
from raydix.runtime.scheduler.core import SchedulerCore
from raydix.runtime.scheduler.settings import PrefetchSettings
from tests.runtime.scheduler.core_driver import BASE, CoreDriver
from tests.runtime.scheduler.keys import mirror_keys
from tests.simulation.faults import Faults
from tests.simulation.workload import BASE_SETTINGS, STORAGE, Workload, run_workload

PROMPT = list(range(17))


def sent(driver: CoreDriver, kind: type) -> list[object]:
    """Messages of one kind that wait to be heard by HostMemory."""
    return [message for message in driver.to_host if isinstance(message, kind)]


def test_overdue_step_condemns_the_rank_after_warm_up_only() -> None:
    driver = CoreDriver(step_deadline_s=30.0)
    driver.submit(PROMPT, max_tokens=50)
    driver.wait(100.0)
    assert not driver.kills, "the first step may compile for long"
    driver.step()
    driver.wait(29.0)
    assert not driver.kills, "the step behind the first one has only just started"
    driver.wait(2.0)
    assert [(kill.rank, kill.incarnation) for kill in driver.kills] == [(0, 1)]


def test_first_step_that_hangs_is_noticed_in_the_end() -> None:
    driver = CoreDriver(step_deadline_s=30.0, first_step_deadline_s=600.0)
    driver.submit(PROMPT, max_tokens=50)
    driver.wait(599.0)
    assert not driver.kills
    driver.wait(32.0)
    assert driver.kills, "its requests would wait for ever"


def test_step_that_hangs_behind_a_slow_first_step_is_noticed() -> None:
    driver = CoreDriver(step_deadline_s=30.0)
    driver.submit([1, 2, 3], max_tokens=2)
    driver.wait(40.0)
    driver.step()
    assert len(driver.plans[0]) == 1, (
        "the last token's step is the only one in flight, and no other follows"
    )
    driver.wait(100.0)
    assert driver.kills


def test_copy_that_hangs_condemns_the_rank() -> None:
    driver = CoreDriver(has_host_memory=True, step_deadline_s=30.0, prefill_budget_tokens=64)
    driver.submit(PROMPT, max_tokens=1)
    driver.host_turn()
    while driver.plans[0]:
        driver.step()
    assert driver.core.stats()["transfers_in_flight"] == 1
    driver.wait(29.0)
    assert not driver.kills
    driver.wait(2.0)
    assert "transfer" in driver.kills[0].reason


def loading(num_loads: int, **changes: Any) -> tuple[CoreDriver, list[int]]:
    """A rank that has made a step and does so many loads, all sent together; their ids."""
    driver = CoreDriver(has_host_memory=True, step_deadline_s=30.0, num_pages=(64,), **changes)
    driver.submit([1], max_tokens=1)
    driver.run()
    prompts = [[start, *PROMPT[1:]] for start in range(100, 100 + num_loads)]
    for prompt in prompts:
        driver.fill_l2(prompt)
        driver.submit(prompt, max_tokens=1)
    driver.host_turn()
    while driver.plans[0]:
        driver.step()
    return driver, [*driver.core._lanes[0].in_flight.transfers]


def test_copy_behind_others_is_not_late_for_their_time() -> None:
    driver, ids = loading(3)
    for number in ids:
        driver.wait(20.0)
        driver.report(0, TransfersDone(rank=0, transfer_ids=int32_array([number])))
    driver.wait(100.0)
    assert len(ids) == 3
    assert not driver.kills


def test_copy_that_hangs_behind_others_is_noticed() -> None:
    driver, ids = loading(3)
    driver.wait(20.0)
    driver.report(0, TransfersDone(rank=0, transfer_ids=int32_array(ids[1:])))
    driver.wait(11.0)
    assert f"transfer {ids[0]}" in driver.kills[0].reason


def test_large_copy_over_a_slow_link_is_not_late_before_it_can_be_done() -> None:
    num_bytes = 4 * BASE.layout.payload_bytes(0)
    driver, ids = loading(1, start_load_bytes_per_s=num_bytes / 20.0)
    driver.wait(45.0)
    driver.report(0, TransfersDone(rank=0, transfer_ids=int32_array(ids)))
    driver.wait(1.0)
    assert not driver.kills


def test_only_the_ranks_that_are_late_are_condemned() -> None:
    driver = CoreDriver(ranks_per_lane=2, step_deadline_s=30.0)
    driver.submit(PROMPT, max_tokens=50)
    driver.step()
    step = driver.plans[0][0].step
    driver.report(0, StepResult(rank=0, step=step, token_ids=int32_array((1,))))
    driver.wait(31.0)
    assert [kill.rank for kill in driver.kills] == [1]


@pytest.mark.parametrize("incarnation", [1, 2])
def test_reports_over_an_earlier_connection_are_ignored(incarnation: int) -> None:
    driver = CoreDriver()
    name = driver.submit([1, 2], max_tokens=3)
    earlier = driver.connection_of(0)
    driver.lose_rank(0)
    driver.attach_rank(0, incarnation=incarnation)
    late = StepResult(rank=0, step=1, token_ids=int32_array((9,)))
    driver.send(events.RankMessage(rank=0, connection=earlier, message=late))
    driver.run()
    assert driver.answers[name].tokens == [1, 1, 1]


def test_dead_rank_leaves_its_copies_to_host_memory() -> None:
    driver = CoreDriver(has_host_memory=True, prefill_budget_tokens=64)
    driver.fill_l2(PROMPT)
    driver.submit(list(range(500, 509)), max_tokens=1)
    driver.host_turn()
    driver.step()
    driver.submit(PROMPT, max_tokens=1)
    driver.host_turn()
    loads = [plan for plan in driver.plans[0] if len(plan.loads)]
    backups = [plan for plan in driver.plans[0] if len(plan.backups)]
    assert loads
    assert backups
    driver.lose_rank(0)
    (abandoned,) = sent(driver, host.AbandonPages)

    assert isinstance(abandoned, host.AbandonPages)
    assert abandoned.pids == (100,)
    assert abandoned.host_page_ids.tolist() == backups[0].backups.host_page_ids.tolist()
    assert list(abandoned.lease_ids) == list(driver.leases)


def test_silent_host_memory_is_done_without_and_then_used_again() -> None:
    driver = CoreDriver(has_host_memory=True, lookup_deadline_s=0.05, prefill_budget_tokens=64)
    driver.fill_l2(PROMPT)
    name = driver.submit(PROMPT, max_tokens=1)
    lease = next(message for message in driver.to_host if isinstance(message, host.LeasePages))
    driver.wait(0.11)
    driver.step()
    assert driver.answers[name].ending == "length", "a lease that nobody grants is not waited for"
    assert driver.core.stats()["host_silences"] == 1
    driver.to_host.clear()
    driver.submit(list(range(500, 517)), max_tokens=1, name="meanwhile")
    assert not driver.to_host, "nothing is asked of a silent HostMemory"
    while driver.plans[0]:
        driver.step()
    assert driver.answers["meanwhile"].ending == "length"
    no_pages = int32_array(())
    driver.hear_host(
        host.PagesLeased(
            lease_id=lease.lease_id, host_page_ids=(no_pages,), generations=(no_pages,)
        )
    )
    assert sent(driver, host.ReleaseLeases), "the late lease goes back at once"
    driver.send(events.FlushL1())
    driver.to_host.clear()
    again = driver.submit(PROMPT, max_tokens=1)
    driver.run()

    assert driver.answers[again].sources == {"l2": 16, "computed:partial_page": 1}


def test_pages_reserved_for_a_lease_before_the_first_step_are_free_when_it_is_given_up() -> None:
    prompt = list(range(90))
    driver = CoreDriver(has_host_memory=True, num_pages=(25,), prefill_budget_tokens=64)
    driver.fill_l2(prompt)
    name = driver.submit(prompt, max_tokens=1)
    assert driver.core.stats()["leases_wanted"] == 1
    driver.wait(1.0)
    for _ in range(3):
        if driver.plans[0]:
            driver.step()
    assert driver.answers[name].ending == "length"


def test_unanswered_lookup_is_given_up_exactly_at_its_deadline() -> None:
    for arrival_s in (0.3, 0.7, 1.1, 2.3):
        driver = CoreDriver(
            has_host_memory=True, lookup_deadline_s=0.05, start_prefill_tokens_per_s=1.0
        )
        driver.now_s = arrival_s
        driver.submit(PROMPT, max_tokens=1)
        driver.now_s += 0.01
        driver.send_tick()  # from here on HostMemory owes an answer
        driver.wait(0.0499)
        assert driver.core.stats()["num_requests_running"] == 0
        driver.wait(0.0002)
        assert driver.core.stats()["num_requests_running"] == 1


def test_own_turn_counts_as_nobodys_silence() -> None:
    driver = CoreDriver(
        has_host_memory=True, lookup_deadline_s=0.05, start_prefill_tokens_per_s=1.0
    )
    driver.submit(PROMPT, max_tokens=1)
    driver.now_s += 0.08  # the turn that asked took so long: HostMemory has not heard yet
    driver.send_tick()
    driver.host_turn()
    assert driver.core.stats().get("host_silences", 0) == 0
    driver.run()
    assert driver.answers["r1"].ending == "length"


def test_silence_is_noticed_if_no_other_event_comes() -> None:
    patient = PrefetchSettings(strategy=PrefetchStrategy.WAIT_COMPLETE)
    driver = CoreDriver(has_host_memory=True, lookup_deadline_s=0.05, prefetch=patient)
    driver.submit(PROMPT, max_tokens=1)
    driver.wait(0.11)
    assert driver.core.stats()["host_silences"] == 1


def test_lost_host_memory_is_done_without_and_its_grants_are_void() -> None:
    driver = CoreDriver(has_host_memory=True, prefill_budget_tokens=64)
    driver.fill_l2(PROMPT)
    name = driver.submit(PROMPT, max_tokens=1)
    driver.lose_host()
    driver.run()
    assert driver.answers[name].sources == {"computed:not_found": 16, "computed:partial_page": 1}
    assert not driver.to_host
    assert driver.core.stats()["l2_known_pages"] == 0
    driver.attach_host()
    (drained,) = sent(driver, host.CopiesDrained)
    assert drained == host.CopiesDrained()


def test_new_host_memory_is_told_that_copies_are_drained_only_when_they_are() -> None:
    driver = CoreDriver(has_host_memory=True, prefill_budget_tokens=64)
    driver.submit(PROMPT, max_tokens=1)
    driver.host_turn()
    driver.step()
    assert driver.core.stats()["transfers_in_flight"] == 1
    driver.lose_host()
    driver.attach_host()
    assert not sent(driver, host.CopiesDrained)
    driver.finish_copies()
    assert sent(driver, host.CopiesDrained)
    assert not sent(driver, host.CommitPages), (
        "the old HostMemory's pages mean nothing to the new one"
    )


def test_new_host_memory_is_not_drained_while_a_rank_is_missing() -> None:
    driver = CoreDriver(has_host_memory=True)
    driver.lose_host()
    driver.lose_rank(0)
    driver.attach_host()
    assert not sent(driver, host.CopiesDrained)
    driver.attach_rank(0, incarnation=2)
    assert sent(driver, host.CopiesDrained)


def test_words_of_an_earlier_host_memory_are_ignored() -> None:
    driver = CoreDriver(has_host_memory=True)
    earlier = driver.host_connection
    driver.lose_host()
    driver.attach_host()
    driver.hear_host(host.MirrorUpdate(ready=mirror_keys(driver.keys(PROMPT))), connection=earlier)
    assert driver.core.stats()["l2_known_pages"] == 0


def test_kills_of_every_kind_lose_and_repeat_no_token() -> None:
    for seed in range(6):
        run_workload(
            Workload(
                seed=seed,
                storage=STORAGE,
                faults=Faults(storage_failure_fraction=0.1),
                num_rank_kills=4,
                num_host_kills=1,
                num_storage_kills=1,
                num_host_pauses=2,
            )
        )


def test_requests_of_a_lane_without_ranks_move_to_the_first_that_gets_some() -> None:
    driver = CoreDriver(num_lanes=2, is_attached=False)
    names = [driver.submit([i] * 9, max_tokens=2) for i in range(4)]
    driver.attach_rank(1)
    driver.run()
    assert [driver.answers[name].ending for name in names] == ["length"] * 4


def test_request_that_ends_every_rank_it_runs_on_fails_alone_and_the_others_are_answered() -> None:
    driver = CoreDriver(max_running_requests=4)
    names = [
        driver.submit([index] * 9, max_tokens=3, name=f"innocent {index}") for index in range(3)
    ]
    driver.submit([9] * 9, max_tokens=3, name="killer")
    num_losses = 0
    for _ in range(60):
        if not driver.plans[0]:
            break
        if "killer" in driver.rows(driver.plans[0][0]):
            driver.lose_rank(0)
            num_losses += 1
            driver.attach_rank(0, incarnation=1 + num_losses)
        else:
            driver.step()

    assert num_losses == 3
    assert driver.answers["killer"].ending == "EngineDead"
    assert [driver.answers[name].ending for name in names] == ["length"] * 3


def test_losses_that_tokens_lie_between_end_nobody() -> None:
    driver = CoreDriver()
    name = driver.submit([1] * 9, max_tokens=12)
    for incarnation in range(2, 8):
        driver.step()
        driver.step()
        driver.lose_rank(0)
        driver.attach_rank(0, incarnation=incarnation)
    driver.run()
    assert driver.answers[name].ending == "length"
    assert driver.answers[name].tokens == [1] * 12


def test_process_that_says_hello_anew_is_told_to_be_drained() -> None:
    driver = CoreDriver(has_host_memory=True, prefill_budget_tokens=64)
    driver.submit(PROMPT, max_tokens=1)
    driver.host_turn()
    driver.step()
    driver.lose_rank(0)
    assert [
        message.pids for message in driver.to_host if isinstance(message, host.AbandonPages)
    ] == [(100,)]
    driver.to_host.clear()
    driver.attach_rank(0)
    assert [
        message.pid for message in driver.to_host if isinstance(message, host.ProcessDrained)
    ] == [100]


def test_nothing_is_said_to_a_host_memory_over_another_connection_than_it_is_about() -> None:
    driver = CoreDriver(has_host_memory=True, prefill_budget_tokens=64)
    driver.fill_l2(PROMPT)
    driver.submit(PROMPT, max_tokens=1)
    earlier = driver.host_connection
    effects = driver.core.handle(events.HostAttached(connection=ConnectionId(77)), driver.now_s)
    about = {effect.connection for effect in effects if isinstance(effect, events.SendHost)}
    assert about <= {ConnectionId(77)}
    assert earlier not in about


def test_ranks_of_two_generations_never_step_together() -> None:
    """Rank 0 ended while no Scheduler lived: the survivor of its group is ended, too."""
    core = SchedulerCore(replace(BASE_SETTINGS, num_lanes=1, ranks_per_lane=2))

    def attach(rank: int, incarnation: int, link: int) -> list[events.Effect]:
        hello = events.RankAttached(
            rank=rank, connection=ConnectionId(link), incarnation=incarnation, pid=link
        )
        return core.handle(hello, 0.01 * link)

    def ended(effects: list[events.Effect]) -> list[tuple[int, int]]:
        kills = [effect for effect in effects if isinstance(effect, events.KillRank)]
        assert all(kill.cause is events.KillCause.GROUP_BROKEN for kill in kills)
        return [(kill.rank, kill.incarnation) for kill in kills]

    assert ended(attach(1, 1, link=1)) == []
    assert ended(attach(0, 2, link=2)) == [(1, 1)]

    assert ended(attach(1, 1, link=3)) == [(1, 1)], "it may not come back, and is ended once more"
    assert core.stats()["ranks_attached"] == 1

    assert ended(attach(1, 2, link=4)) == []
    assert core.stats()["ranks_attached"] == 2
