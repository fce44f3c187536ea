"""A request needs room for what it computes, but of a window group never more than it keeps."""

from dataclasses import replace

import pytest

from raydix.runtime.config.kv_layout import GroupKind
from raydix.runtime.scheduler.pages.page_needs import (
    add_pages,
    pages_to_compute,
    total_pages_to_compute,
)
from raydix.runtime.scheduler.request.block_table import BlockTable
from tests.runtime.scheduler.core_driver import BASE, CoreDriver

FULL = BASE.layout.groups[0]
WINDOW = replace(FULL, kind=GroupKind.WINDOW, window=8)
SETTINGS = replace(BASE, layout=replace(BASE.layout, groups=(FULL, WINDOW)), num_pages=(100, 20))
MOST = 2 + 4 + 1
"""A window of two pages, a step of four, and the page that is begun."""


def test_a_long_prompt_needs_a_window_and_a_step() -> None:
    assert pages_to_compute(SETTINGS, 5) == (5, 5)
    assert pages_to_compute(SETTINGS, 50) == (50, MOST)


def test_a_prompt_that_is_computed_at_once_needs_all_its_pages() -> None:
    assert pages_to_compute(replace(SETTINGS, chunked_prefill=False), 25) == (25, 25)


def test_needs_of_several_requests_add_up() -> None:
    assert total_pages_to_compute(SETTINGS, [3, 50], 2) == (55, 3 + MOST + 2)
    assert add_pages((1, 2), (3, 4), (5, 6)) == (9, 12)


def num_tables_looked_at(num_requests: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """How often the length of a block table is asked for while so many requests begin at once."""
    driver = CoreDriver(
        num_pages=(1000,), max_running_requests=num_requests, prefill_budget_tokens=4096
    )
    # The others come while two steps are under way.
    for token in (1, 2):
        driver.submit([token], max_tokens=1)
    for token in range(num_requests):
        driver.submit([token], max_tokens=1)
    num_looks = 0
    known_length = BlockTable.__len__

    def look(table: BlockTable) -> int:
        nonlocal num_looks
        num_looks += 1
        return known_length(table)

    monkeypatch.setattr(BlockTable, "__len__", look)
    driver.run()
    monkeypatch.undo()
    assert set(driver.endings) == set(driver.answers)
    return num_looks


def test_a_request_that_begins_costs_no_look_at_those_that_began_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    few, many = (num_tables_looked_at(number, monkeypatch) for number in (50, 200))
    assert many < 6 * few
