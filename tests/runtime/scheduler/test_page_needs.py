"""A request needs room for what it computes, but of a window group never more than it keeps."""

from dataclasses import replace

from raydix.runtime.config.kv_layout import GroupKind
from raydix.runtime.scheduler.page_needs import (
    add_pages,
    pages_to_compute,
    total_pages_to_compute,
)
from tests.runtime.scheduler.core_driver import BASE

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
