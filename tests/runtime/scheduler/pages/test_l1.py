"""How L1 gives back what leaves it."""

import pytest

from raydix.runtime.cache.page_key import pack_tokens, root_key
from raydix.runtime.cache.page_pools import PageIds, PagePools
from raydix.runtime.scheduler import events
from tests.runtime.scheduler.core_driver import CoreDriver

PROMPTS = [list(range(100 * index, 100 * index + 9)) for index in range(5)]


@pytest.fixture
def releases(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many pages each release gave back."""
    counted: list[int] = []
    release = PagePools.release

    def count(pools: PagePools, page_ids: PageIds, *, after_step: int) -> None:
        if page_ids[0].any():
            counted.append(len(page_ids[0]))
        release(pools, page_ids, after_step=after_step)

    monkeypatch.setattr(PagePools, "release", count)
    return counted


def cached_driver() -> CoreDriver:
    """Five short prompts are cached, two pages each."""
    driver = CoreDriver(num_pages=(14,))
    for prompt in PROMPTS:
        driver.submit(prompt, max_tokens=1)
        driver.run()
    assert driver.core.stats()["l1_cached_pages"] == 10
    return driver


def test_a_flush_gives_all_pages_back_at_once(releases: list[int]) -> None:
    driver = cached_driver()
    running = driver.submit(PROMPTS[0])
    releases.clear()
    driver.send(events.FlushL1())
    assert releases == [8]
    assert driver.core.stats()["l1_cached_pages"] == 2
    assert not any(
        driver.core._lanes[0].l1.tree.match(root_key(), pack_tokens(prompt)).num_pages
        for prompt in PROMPTS[1:]
    )
    driver.run()
    assert driver.answers[running].ending == "length"


def num_waiting(driver: CoreDriver) -> int:
    """Pages that steps on their way may still name."""
    return driver.core._lanes[0].l1.pools.group(0).num_quarantined


def test_what_has_ended_with_its_last_row_is_free_at_once() -> None:
    driver = CoreDriver(num_pages=(14,))
    running = driver.submit(list(range(9)), max_tokens=30)
    driver.step()
    short = driver.submit(list(range(100, 109)), max_tokens=1)
    while driver.answers.get(short) is None:
        assert driver.plans[0]
        driver.step()

    assert driver.plans[0], "steps of the other one are on their way"
    driver.send(events.FlushL1())

    assert num_waiting(driver) == 0
    assert driver.answers[running].ending is None
    driver.core.check()


def test_what_is_aborted_waits_for_the_steps_that_name_it() -> None:
    driver = CoreDriver(num_pages=(14,))
    name = driver.submit(list(range(9)), max_tokens=30)
    driver.step()
    driver.step()
    assert len(driver.plans[0]) == 2

    driver.abort(name)
    driver.send(events.FlushL1())

    for num_left in (3, 3, 0):
        assert num_waiting(driver) == num_left
        driver.core.check()
        if driver.plans[0]:
            driver.step()


def test_room_that_many_short_prompts_make_is_given_back_at_once(releases: list[int]) -> None:
    driver = cached_driver()
    releases.clear()
    driver.core._lanes[0].l1.make_room((12,))
    assert releases == [8]
    driver.core.check()


def test_pages_for_all_decodes_of_a_step_are_evicted_at_once(releases: list[int]) -> None:
    driver = cached_driver()
    for prompt in ([1000], [2000], [3000]):
        driver.submit(prompt, max_tokens=8)
    releases.clear()
    driver.run()
    assert releases[0] == 2, "of the three that are wanted one is free"


def test_a_prompt_waits_for_no_page_in_quarantine_while_others_are_to_be_had_at_once() -> None:
    driver = cached_driver()
    aborted = driver.submit(list(range(1000, 1009)), max_tokens=30)
    driver.step()
    driver.abort(aborted)
    assert num_waiting(driver) == 1
    driver.step()

    prompt = driver.submit(list(range(2000, 2009)), max_tokens=1)

    assert num_waiting(driver) == 1, "the others were free, or cached and not used of late"
    assert driver.rows(driver.plans[0][-1]) == {prompt: 9}
    driver.run()
    driver.core.check()
