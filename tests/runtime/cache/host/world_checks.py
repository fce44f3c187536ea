"""What must hold in the world of HostMemory at any time, for every Scheduler."""

from collections.abc import Iterable

from raydix.runtime.messages.host import PagesLeased
from tests.runtime.cache.host.host_script import HostScript
from tests.runtime.cache.host.host_values import make_key
from tests.runtime.cache.host.host_world import Engine, Memory, Read, ready_names
from tests.runtime.cache.host.scheduler_end import SchedulerEnd


def _attached(host: HostScript) -> list[SchedulerEnd]:
    return [end for end in host.ends.values() if end.link is not None]


def check_pages(host: HostScript, memory: Memory, engines: Iterable[Engine]) -> None:
    """Pages hold what they should, and each has one holder."""
    index = host.core._index
    memory.check_ready(index)

    granted = [page for end in _attached(host) for pairs in end.granted_of for page, _ in pairs]
    assert len(granted) == len(set(granted)), "a page is granted to both"
    memory.check_writable(index, set(granted), host.orders)
    memory.check_reads(index, [read for engine in engines for read in engine.ranks.reads])


def check_mirrors(host: HostScript) -> None:
    """A mirror has no key that L2 lacks, and in the end all that it has."""
    ready = {(group, key[:16]) for group, key in ready_names(host.core._index)}
    for end in _attached(host):
        known = {(group, key) for group, keys in enumerate(end.mirror_of) for key in keys}
        assert known <= ready
        assert end.link is not None
        assert known == ready or host.core._schedulers.of(end.link).mirror.has_work


def check_news_of_storage(host: HostScript, *, is_in_use: bool) -> None:
    """Every Scheduler knows whether there is L3."""
    assert all(end.knows_storage == is_in_use for end in _attached(host))


def leased_pages(
    host: HostScript, leased: PagesLeased, chain: list[int], starts: Iterable[int]
) -> list[Read]:
    """What a lease of a chain pins, whose runs in all groups end together."""
    held: list[Read] = []
    ends = set()
    for group, start in enumerate(starts):
        pages = leased.host_page_ids[group].tolist()
        generations = leased.generations[group].tolist()
        assert generations == [host.table[page] for page in pages]
        held += [
            (page, (group, make_key(name)))
            for page, name in zip(pages, chain[start:], strict=False)
        ]
        if pages:
            ends.add(start + len(pages))
    assert len(ends) <= 1, "all runs end together"
    return held
