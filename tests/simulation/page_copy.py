"""A page on its way between tiers."""

from typing import NamedTuple

from raydix.runtime.messages.plan import PageCopies


class PageCopy(NamedTuple):
    """One page on its way between L1 and L2."""

    group: int
    page: int
    host_page: int
    generation: int


class StrayWrite(AssertionError):
    """A backup was written to a host page that somebody else had been given in the meantime."""


def by_transfer(copies: PageCopies) -> dict[int, list[PageCopy]]:
    """The pages of each transfer of a plan."""
    transfers: dict[int, list[PageCopy]] = {}
    columns = (copies.groups, copies.page_ids, copies.host_page_ids, copies.generations)
    pages = map(PageCopy._make, zip(*(column.tolist() for column in columns), strict=True))
    for transfer, page in zip(copies.transfer_ids.tolist(), pages, strict=True):
        transfers.setdefault(transfer, []).append(page)
    return transfers
