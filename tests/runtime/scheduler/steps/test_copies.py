"""How many copies to L2 the plans of several lanes begin."""

import itertools
from types import SimpleNamespace
from typing import Any

import pytest

from raydix.ids import ConnectionId
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.host import PagesGranted
from raydix.runtime.scheduler.sources.host_view import HostView
from raydix.runtime.scheduler.steps.copies import CopyDrafter

STOCK = 16
COPY_PAGES = 4


class Backlog:
    """The dirty pages of a lane, of which a copy takes some."""

    def __init__(self, host: HostView, num_pages: int) -> None:
        self._host, self._num_pages = host, num_pages

    def take(self, now_s: float) -> list[tuple[list[bytes], list[int]]]:
        num_taken = min(COPY_PAGES, self._num_pages, self._host.num_granted(0))
        self._num_pages -= num_taken
        return [([bytes(32)] * num_taken, list(range(1, num_taken + 1)))]


def host_with_grants() -> HostView:
    host = HostView(1)
    host.attach(ConnectionId(1))
    ids = int32_array(range(STOCK))
    host.stock(PagesGranted(host_page_ids=ids, generations=ids, group=0))
    return host


def copied(*backlogs: int) -> list[list[int]]:
    """The sizes of the copies that a plan of each lane begins, one lane after the other."""
    host: Any = host_with_grants()
    source: Any = SimpleNamespace(view=host)
    drafter = CopyDrafter(num_lanes=len(backlogs), requests=SimpleNamespace(), source=source)  # type: ignore[arg-type]
    numbers = itertools.count(1)
    in_flight = SimpleNamespace(new_transfer_id=lambda: next(numbers))
    lanes: list[Any] = [
        SimpleNamespace(backups=Backlog(host, each), in_flight=in_flight) for each in backlogs
    ]
    return [[len(each.page_ids[0]) for each in drafter._take_backups(one, 0.0)] for one in lanes]


@pytest.mark.parametrize(
    ("backlogs", "sizes"),
    [
        ((9,), [[4, 4, 1]]),
        ((100,), [[4, 4, 4, 4]]),
        ((0,), [[]]),
        ((100, 100), [[4, 4, 4], [4]]),
        ((100, 100, 100), [[4, 4], [4], [4]]),
    ],
)
def test_a_plan_copies_all_that_there_is_and_leaves_others_as_much(
    backlogs: tuple[int, ...], sizes: list[list[int]]
) -> None:
    assert copied(*backlogs) == sizes
