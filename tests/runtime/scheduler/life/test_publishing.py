"""Pages of answers are published a few at a time, and none is lost when a run ends."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from raydix.runtime.cache.page_key import pack_tokens, root_key
from raydix.runtime.scheduler import events
from tests.runtime.scheduler.core_driver import CLIENT, CoreDriver

PROMPT = list(range(1, 10))


def driver_of_few(**changes: Any) -> CoreDriver:
    """Three pages of four tokens are published together."""
    return CoreDriver(**{"num_pages": (48,), "few_pages_part": 16, **changes})


def num_cached(driver: CoreDriver, tokens: list[int]) -> int:
    """Pages of these tokens that L1 has."""
    match = driver.core._lanes[0].l1.tree.match(root_key(), pack_tokens(tokens))
    return match.num_pages


def decoding(driver: CoreDriver, num_tokens: int) -> list[int]:
    """A request that has so many tokens of answer; its tokens."""
    driver.submit(PROMPT, max_tokens=80, name="long")
    while "long" not in driver.answers or len(driver.answers["long"].tokens) < num_tokens:
        driver.step()
    return PROMPT + driver.answers["long"].tokens


def test_pages_come_to_the_tree_a_few_at_a_time() -> None:
    driver = driver_of_few()
    driver.submit(PROMPT, max_tokens=80, name="long")

    found = []
    for _ in range(60):
        driver.step()
        answer = driver.answers.get("long")
        found.append(0 if answer is None else num_cached(driver, PROMPT + answer.tokens))
    changes = [after for before, after in itertools.pairwise(found) if after != before]

    # The prompt has two; then with every 12th token.
    assert found[0] == 2
    assert changes == [3, 6, 9, 12, 15]


@pytest.mark.parametrize(
    "end",
    [
        lambda driver: driver.stop("long"),
        lambda driver: driver.abort("long"),
        lambda driver: driver.send(events.ClientGone(client_id=CLIENT)),
        lambda driver: driver.send(events.EndRequests()),
    ],
    ids=["stop", "abort", "client gone", "shut down"],
)
def test_what_was_computed_is_there_after_the_end(end: Callable[[CoreDriver], object]) -> None:
    driver = driver_of_few()
    known = decoding(driver, 8)
    assert num_cached(driver, known) == 3

    end(driver)

    # Of 17 tokens the last is not computed.
    assert num_cached(driver, known) == 4
    driver.core.check()


def test_what_a_run_leaves_late_does_not_hide_a_newer_use_of_its_prefix() -> None:
    driver = driver_of_few()
    decoding(driver, 8)
    tree = driver.core._lanes[0].l1.tree
    driver.now_s += 50.0
    match = tree.match(root_key(), pack_tokens(PROMPT))
    lock = tree.lock(match, match.num_pages, now_s=driver.now_s)
    used, node = driver.now_s, lock.node
    tree.unlock(lock, last_step=0)
    assert node is not None

    driver.abort("long")

    assert node.last_use_s == used


def test_the_last_pages_of_a_whole_answer_are_there() -> None:
    driver = driver_of_few()
    driver.submit(PROMPT, max_tokens=20, name="whole")
    driver.run()

    assert num_cached(driver, PROMPT + driver.answers["whole"].tokens) == (9 + 20 - 1) // 4


def test_a_few_pages_are_evicted_together_once_one_is_needed() -> None:
    driver = driver_of_few()
    for start in range(100, 400, 60):
        driver.submit(list(range(start, start + 36)), max_tokens=1)
        driver.run()
    driver.submit(PROMPT, max_tokens=60, name="long")

    free = []
    while "long" not in driver.answers or driver.answers["long"].ending is None:
        driver.step()
        stats = driver.core.stats()
        free.append(stats["l1_total_pages"] - stats["l1_used_pages"])
    assert max(free[5:-3]) == 3
