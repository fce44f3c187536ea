"""HostMemory with WINDOW groups, and what a lookup made of it, in short."""

from dataclasses import replace

from raydix.runtime.cache.host.settings import StorageSettings
from raydix.runtime.cache.host.window_ends import PrefixRule
from raydix.runtime.cache.page_key import split_keys
from raydix.runtime.messages.host import AskExists, PageSource, ReadObjects
from tests.runtime.cache.host.host_script import HostScript
from tests.runtime.cache.host.host_values import STORAGE

TIERS = {
    PageSource.L1: "1",
    PageSource.L2: "2",
    PageSource.L3: "3",
    PageSource.PENDING: "?",
    PageSource.NOT_FOUND: ".",
    PageSource.NO_WINDOW: ".",
    PageSource.IO_ERROR: "!",
    PageSource.BAD_OBJECT: "b",
    PageSource.TIMED_OUT: "t",
    PageSource.CANCELLED: "c",
    PageSource.NO_HOST_PAGE: "n",
    PageSource.BELOW_MIN_TOKENS: "m",
}


QUIET = replace(STORAGE, max_write_batches=0, max_read_batches=8)


FULL, WINDOW = 0, 1


def with_windows(
    *reaches: int | None,
    apart: int = 100,
    storage: StorageSettings | None = QUIET,
    num_pages: int = 240,
) -> HostScript:
    """Make a host that has, by default, a FULL group, and a WINDOW group that needs two pages."""
    reaches = reaches or (None, 2)
    host = HostScript(
        num_pages,
        storage,
        num_slabs=6,
        page_sizes=(1,) * len(reaches),
        rule=PrefixRule(reaches=reaches, checkpoint_pages=apart),
    )
    host.attach_scheduler()
    if storage is not None:
        host.attach_storage(50)
    return host


def tiers(host: HostScript, request: str = "r") -> list[str]:
    groups = range(host.num_groups)
    return ["".join(TIERS[source] for source in host.sources(request, group)) for group in groups]


def answer_questions(host: HostScript) -> None:
    while any(isinstance(order, AskExists) for order in host.orders):
        host.answer(next(i for i, o in enumerate(host.orders) if isinstance(o, AskExists)))


def reads(host: HostScript, group: int) -> list[int]:
    """Places of a group's pages that are being read; chains here begin at page 0."""
    orders = [o for o in host.orders if isinstance(o, ReadObjects) and o.group == group]
    return [int(key.rstrip(b".")) for order in orders for key in split_keys(order.keys)]


def asked(host: HostScript, group: int) -> list[int]:
    orders = [o for o in host.orders if isinstance(o, AskExists) and o.group == group]
    return [int(key.rstrip(b".")) for order in orders for key in split_keys(order.keys)]
