"""Backups: which pages are copied to L2, and when."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from raydix.runtime.cache.page_key import split_keys
from raydix.runtime.config.kv_layout import GroupKind
from raydix.runtime.config.policies import WritePolicy
from raydix.runtime.messages.host import PagesGranted
from raydix.runtime.scheduler.pages import backup_amounts
from tests.runtime.scheduler.core_driver import BASE, CoreDriver
from tests.runtime.scheduler.host_stand_in import HostStandIn
from tests.runtime.scheduler.l2_driver import OTHER, PROMPT, driver_with, evict_from_l1, serve


def test_write_through_backs_up_at_once_and_commits_after_the_acknowledgement() -> None:
    driver = driver_with()
    driver.submit(PROMPT, max_tokens=1)
    driver.host_turn()
    driver.step()
    assert len(driver.plans[0][-1].backups) == 4
    assert not driver.ready
    driver.host_turn()
    assert not driver.ready, "nothing is published before its copy is acknowledged"
    driver.finish_copies()
    driver.host_turn()
    assert driver.ready == set(split_keys(driver.keys(PROMPT)))


def test_a_copy_has_as_many_pages_as_its_bytes_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = driver_with()
    page_bytes = driver.settings.layout.host_page_bytes(0)
    monkeypatch.setattr(backup_amounts, "_MAX_BYTES_PER_COPY", 3 * page_bytes + 1)
    driver.submit(PROMPT, max_tokens=1)
    driver.host_turn()
    driver.step()

    copies = driver.plans[0][-1].backups
    assert sorted(Counter(copies.transfer_ids.tolist()).values()) == [1, 3]
    driver.run()
    assert driver.ready == set(split_keys(driver.keys(PROMPT)))


def test_a_page_that_is_evicted_while_it_is_copied_is_not_lost() -> None:
    driver = driver_with(num_pages=(8,))
    driver.submit(PROMPT, max_tokens=1)
    driver.host_turn()
    driver.step()
    assert len(driver.plans[0][-1].backups) == 4
    driver.step()
    driver.submit([100 + token for token in range(25)], max_tokens=1)
    driver.host_turn()
    assert driver.core.stats()["evicted_pages"] > 0
    assert driver.core.stats().get("dropped_pages", 0) == 0

    driver.run()
    assert driver.ready >= set(split_keys(driver.keys(PROMPT)))


def test_a_page_is_in_l2_from_its_commit_on() -> None:
    driver = driver_with()
    driver.submit(PROMPT, max_tokens=1)
    driver.host_turn()
    driver.step()
    assert driver.core.stats()["l2_known_pages"] == 0
    driver.finish_copies()
    # HostMemory has not said so yet: to copy it once more or count it as lost would be wrong.
    assert driver.core.stats()["l2_known_pages"] == 4


def backups_of_steps(driver: CoreDriver, seconds: float, num_steps: int) -> list[int]:
    """Pages that each of the next plans backs up, in steps of so many seconds."""
    backups = []
    for _ in range(num_steps):
        backups.append(len(driver.step(seconds=seconds).backups))
        driver.finish_copies()
        driver.host_turn()
    return backups


def test_few_pages_gather_beside_short_steps_and_go_when_the_steps_end() -> None:
    driver = driver_with(num_pages=(1024,), max_model_len=1024)
    driver.submit(PROMPT, max_tokens=100)
    driver.host_turn()
    # A token is one step, four pages 16 of them; a copy takes what came in 20.
    backups = backups_of_steps(driver, 0.001, 95)
    copies = np.flatnonzero(backups)
    assert len(copies) == 5
    assert all(np.diff(copies) >= 20)
    driver.run()
    assert len(driver.ready) == (len(PROMPT) + 100 - 1) // 4


@pytest.mark.parametrize(("num_pages", "step_s", "few"), [(512, 0.03, 2), (32, 0.001, 1)])
def test_long_steps_and_small_pools_let_no_page_wait(
    num_pages: int, step_s: float, few: int
) -> None:
    driver = driver_with(num_pages=(num_pages,))
    driver.submit(PROMPT, max_tokens=80)
    driver.host_turn()
    backups = backups_of_steps(driver, step_s, 60)
    assert max(backups[3:]) == few
    assert set(np.diff(np.flatnonzero(backups[3:]))) == {4 * few}


def test_a_small_pool_of_states_lets_other_pages_wait() -> None:
    state = replace(BASE.layout.groups[0], kind=GroupKind.STATE, layers=(2,), head_dim=4096)
    layout = replace(BASE.layout, groups=(*BASE.layout.groups, state))
    driver = driver_with(layout=layout, num_pages=(1024, 32), max_model_len=1024)
    driver.submit(PROMPT, max_tokens=100)
    driver.host_turn()
    # After its prompt no place to keep a state comes, and pages of a small pool wait for nothing.
    copies = np.flatnonzero(backups_of_steps(driver, 0.001, 95))
    assert len(copies) == 5
    assert all(np.diff(copies) >= 20)


def test_many_pages_do_not_wait_for_more() -> None:
    driver = driver_with(num_pages=(8192,), max_model_len=1024)
    driver.submit(PROMPT, max_tokens=500)
    driver.host_turn()
    backups_of_steps(driver, 0.001, 4)
    for start in (1000, 2000, 3000):
        driver.submit(list(range(start, start + 64)), max_tokens=500)
    driver.host_turn()
    backups = backups_of_steps(driver, 0.001, 15)
    # The first two prompts leave 32 pages, the third one's wait.
    assert [num_pages in range(32, 48) for num_pages in backups].count(True) == 1
    assert backups.count(0) == 14


def test_selective_write_waits_for_the_second_distinct_request() -> None:
    driver = driver_with(WritePolicy.WRITE_THROUGH_SELECTIVE)
    serve(driver, PROMPT)
    assert not driver.ready
    serve(driver, [*PROMPT, 99])
    assert driver.ready == set(split_keys(driver.keys(PROMPT)))


def test_selective_write_remembers_uses_of_pages_that_have_left_l1() -> None:
    driver = driver_with(WritePolicy.WRITE_THROUGH_SELECTIVE)
    serve(driver, PROMPT)
    evict_from_l1(driver)
    assert not driver.ready
    serve(driver, PROMPT)
    assert driver.ready == set(split_keys(driver.keys(PROMPT)))


def test_selective_write_remembers_uses_when_ranks_are_replaced() -> None:
    driver = driver_with(WritePolicy.WRITE_THROUGH_SELECTIVE)
    serve(driver, PROMPT)
    driver.lose_rank(0)
    driver.attach_rank(0, incarnation=2)
    serve(driver, PROMPT)
    assert driver.ready == set(split_keys(driver.keys(PROMPT)))


def test_selective_write_copies_a_conversation_whole_from_its_second_turn_on() -> None:
    driver = driver_with(WritePolicy.WRITE_THROUGH_SELECTIVE)
    serve(driver, PROMPT)
    evict_from_l1(driver)
    second = [*PROMPT, *range(200, 220)]
    serve(driver, second)
    assert driver.ready == set(split_keys(driver.keys(second)))


def test_selective_write_does_not_copy_what_follows_a_shared_prefix() -> None:
    driver = driver_with(WritePolicy.WRITE_THROUGH_SELECTIVE)
    for start in (100, 200, 300):
        serve(driver, [*PROMPT[:16], *range(start, start + 17)])
    assert driver.ready == set(split_keys(driver.keys(PROMPT[:16])))


def test_selective_write_counts_a_retracted_request_once() -> None:
    driver = driver_with(WritePolicy.WRITE_THROUGH_SELECTIVE, max_model_len=64, num_pages=(16,))
    names = [
        driver.submit(list(range(start, start + 16)), max_tokens=30, name=str(start))
        for start in (0, 100)
    ]
    driver.run()
    assert driver.core.stats()["retracted_requests"] > 0
    assert [len(driver.answers[name].tokens) for name in names] == [30, 30]
    assert not driver.ready, "each prompt had one request, however often it ran"


def test_selective_write_counts_output_pages_from_the_request_that_made_them() -> None:
    driver = driver_with(WritePolicy.WRITE_THROUGH_SELECTIVE)
    driver.submit(PROMPT[:4], max_tokens=6)
    driver.run()
    serve(driver, [*PROMPT[:4], 1, 1, 1, 1, 77])
    assert driver.ready == set(split_keys(driver.keys([*PROMPT[:4], 1, 1, 1, 1])))


def test_write_back_copies_only_before_eviction() -> None:
    driver = driver_with(WritePolicy.WRITE_BACK, num_pages=(32,))
    serve(driver, PROMPT)
    assert not driver.ready
    for start in range(100, 900, 100):
        serve(driver, list(range(start, start + 17)))
    assert driver.ready >= set(split_keys(driver.keys(PROMPT)))


def test_write_back_loses_nothing_to_a_prompt_of_many_chunks() -> None:
    driver = CoreDriver(
        has_host_memory=True,
        write_policy=WritePolicy.WRITE_BACK,
        num_pages=(32,),
        prefill_budget_tokens=16,
    )
    starts = range(100, 900, 100)
    for start in starts:
        serve(driver, list(range(start, start + 15)))
    serve(driver, list(range(1000, 1072)))
    num_evicted = driver.core.stats()["evicted_pages"]
    keys = [
        key for start in starts for key in split_keys(driver.keys(list(range(start, start + 15))))
    ]

    assert num_evicted == 10
    assert driver.ready >= set(keys[:num_evicted])


def test_loads_of_many_pages_at_once_drop_none_that_there_was_time_to_copy() -> None:
    driver = driver_with(WritePolicy.WRITE_BACK, num_pages=(96,), max_model_len=192)
    num_dropped, keys = [], []
    for start in range(0, 10_000, 1000):
        prompt = list(range(start, start + 153))
        driver.fill_l2(prompt[:112])
        serve(driver, prompt)
        num_dropped.append(driver.core.stats().get("dropped_pages", 0))
        keys.append(split_keys(driver.keys(prompt)))
    # 28 pages come from L2 and 10 are computed: the first time nobody knows how many it will be.
    assert num_dropped[-1] == num_dropped[3] <= 10
    for before in keys[4:7]:
        assert driver.ready >= set(before)


def test_write_back_copies_the_head_of_a_chain_before_it_goes_with_its_last_page() -> None:
    driver = driver_with(WritePolicy.WRITE_BACK, num_pages=(64,), max_model_len=192)
    talk = list(range(13))
    for turn in range(4):
        driver.submit(talk, max_tokens=8)
        driver.run()
        # Each of these has a page of its answer behind those of its prompt.
        for start in range(1000, 7000, 1000):
            first = start + 100 * turn
            driver.submit(list(range(first, first + 51)), max_tokens=2)
            driver.run()
        talk = [*talk, *range(500 + 10 * turn, 510 + 10 * turn)]
    assert driver.core.stats()["evicted_pages"] > 3 * 64
    assert driver.core.stats()["dropped_pages"] == 0


def test_write_back_copies_a_shared_head_before_it_goes_with_its_last_branch() -> None:
    driver = driver_with(WritePolicy.WRITE_BACK, num_pages=(128,), max_model_len=512)
    for start in range(0, 50_000, 10_000):
        head = list(range(start, start + 160))
        for branch in (start + 1000, start + 2000):
            serve(driver, [*head, *range(branch, branch + 5)])
        serve(driver, list(range(start + 3000, start + 3161)))
    assert driver.core.stats()["evicted_pages"] > 2 * 128
    assert driver.core.stats().get("dropped_pages", 0) == 0


def test_write_back_copies_at_once_what_it_lost_before() -> None:
    driver = driver_with(WritePolicy.WRITE_BACK, num_pages=(32,))
    # There is no HostMemory while L1 turns over.
    driver.lose_host()
    for start in (0, *range(1000, 1900, 100)):
        serve(driver, list(range(start, start + len(PROMPT))))
    driver.attach_host()
    evict_from_l1(driver)
    lost = set(split_keys(driver.keys(PROMPT)))
    assert driver.core.stats()["dropped_pages"] > len(lost)
    assert not driver.ready & lost

    serve(driver, [*PROMPT, *OTHER])
    # What follows was not lost: it has time until it goes next.
    keys = set(split_keys(driver.keys([*PROMPT, *OTHER])))
    assert driver.ready & keys == lost


def test_full_host_memory_drops_and_counts_and_serves_on() -> None:
    driver = CoreDriver(
        has_host_memory=True,
        write_policy=WritePolicy.WRITE_BACK,
        num_pages=(16,),
        max_model_len=64,
        is_attached=False,
    )
    driver.attach_rank(
        0
    )  # after HostMemory: it was told that copies are drained, but it has no page to grant
    driver.to_host.clear()
    for start in range(0, 700, 100):
        name = driver.submit(list(range(start, start + 17)), max_tokens=1)
        driver.wait(0.1)
        while driver.plans[0]:
            driver.step()
        assert driver.answers[name].ending == "length"

    assert driver.core.stats()["dropped_pages"] > 0
    assert not driver.core.stats().get("backed_up_pages")


def test_what_l2_has_lost_is_copied_again_only_while_it_goes_next() -> None:
    driver = driver_with(WritePolicy.WRITE_THROUGH, num_pages=(32,))
    prompts = [list(range(start, start + 17)) for start in range(100, 1300, 100)]
    # L1 has room for six: the first of those goes next, and then does not, for it is used.
    for prompt in prompts[:6]:
        serve(driver, prompt)
    serve(driver, prompts[0])
    driver.drop_from_l2(driver.keys(prompts[0]))
    lost = set(split_keys(driver.keys(prompts[0])))

    serve(driver, prompts[6])
    assert not driver.ready & lost
    for prompt in prompts[7:]:
        serve(driver, prompt)
    assert driver.ready >= lost


def test_where_few_states_can_be_copied_that_at_a_chains_end_goes_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    grant = HostStandIn.grant

    def grant_one_state(self: HostStandIn, num_pages: int, group: int = 0) -> PagesGranted:
        return grant(self, min(num_pages, 1) if group else num_pages, group)

    monkeypatch.setattr(HostStandIn, "grant", grant_one_state)
    state = replace(BASE.layout.groups[0], kind=GroupKind.STATE, layers=(2,), head_dim=1024)
    layout = replace(BASE.layout, groups=(*BASE.layout.groups, state))
    driver = driver_with(
        WritePolicy.WRITE_BACK, layout=layout, num_pages=(96, 32), max_model_len=200
    )
    prompts = [list(range(start, start + 65)) for start in range(0, 6000, 1000)]
    states = driver.ready_by_group[1]
    for prompt in prompts:
        driver.submit(prompt, max_tokens=1)
        while not states and (driver.host_turn() or driver.plans[0]):
            driver.step()
            driver.finish_copies()
            driver.host_turn()

    # They have states after page 8, too, where regular places are.
    assert len(states) == 1
    assert states < {split_keys(driver.keys(prompt))[15] for prompt in prompts}
