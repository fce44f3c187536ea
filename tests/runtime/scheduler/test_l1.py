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
        driver.core._replica.lanes[0].l1.tree.match(root_key(), pack_tokens(prompt)).num_pages
        for prompt in PROMPTS[1:]
    )
    driver.run()
    assert driver.answers[running].ending == "length"


def test_room_that_many_short_prompts_make_is_given_back_at_once(releases: list[int]) -> None:
    driver = cached_driver()
    releases.clear()
    driver.core._replica.lanes[0].l1.make_room((12,))
    assert releases == [8]
    driver.core.check()
