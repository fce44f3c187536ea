"""Laws of reuse, as pure checks over the prompts that were asked for at the quiet end of a run.

Whatever a tier has and is well is used again within a bounded time. Whatever was computed twice,
while a tier had room for it, is there the third time.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from enum import Enum

from raydix.ids import HostPageId, PageKey
from raydix.runtime.config.policies import LoadPolicy

Name = tuple[int, PageKey]
"""The KV group and the key of a page."""
Copies = Mapping[tuple[HostPageId, int], Name]
"""What pages of L2 hold, by page and generation: what comes back later is another copy."""

_MAX_RECOMPUTED = 5
"""Hits after loads are well again."""
_CACHED = ("l1", "l2", "peer", "l3", "computed:last_token")
_CHEAPER = "computed:recompute_cheaper"
_NO_ROOM = "computed:no_host_page"
_NO_WINDOW = "computed:no_window"


class Law(Enum):
    """What a prompt was asked for."""

    FIRST = "only prepares what follows"
    STORED = "L3 has these tokens, and is well"
    FORKED = "two requests before shared these tokens"
    LOADED = "L2 has all of it, and loads are well again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """A prompt that was asked for while nothing else happened."""

    law: Law
    num_expected: int
    """Tokens that some tier has."""
    sources: dict[str, int]
    """What was told about the prompt's tokens."""
    prompt: tuple[int, ...] = ()


def check_reuse(probes: Sequence[Probe], load: LoadPolicy) -> None:
    """Every probe found what the tiers had, and few were computed instead of loaded."""
    for probe in probes:
        num_found = sum(probe.sources.get(source, 0) for source in _found(probe, load))
        assert num_found >= probe.num_expected, (
            f"{probe.law.value}: found {num_found} of {probe.num_expected} tokens of a prompt of "
            f"{len(probe.prompt)}: {probe.sources}"
        )

    loaded = [probe for probe in probes if probe.law is Law.LOADED]
    num_recomputed = sum(_CHEAPER in probe.sources for probe in loaded)
    assert num_recomputed <= _MAX_RECOMPUTED, (
        f"{num_recomputed} of {len(loaded)} hits were computed though loads are well again"
    )


def _found(probe: Probe, load: LoadPolicy) -> Sequence[str]:
    """Where tokens may have come from that some tier has."""
    # Where loading is a choice, or forbidden, to have found the pages is enough.
    if load is LoadPolicy.ALWAYS or _CHEAPER not in probe.sources:
        return _CACHED
    if _NO_ROOM not in probe.sources:
        return *_CACHED, _CHEAPER

    # Those that are not loaded make no room in L2 for the ones behind them, which are computed as
    # well. So are pages of a prefix whose window was to come with these.
    return *_CACHED, _CHEAPER, _NO_ROOM, _NO_WINDOW


def has_made_way(needed: Set[Name], had: Set[Name], former: Copies, now: Copies) -> bool:
    """Whether L2 has had all that is needed, and what is gone went for want of room.

    That is so where all that L2 has `now` of the groups that lack something came after `former`.
    The L1 of all lanes may be larger than L2, and copies what goes next whenever a request runs.
    """
    gone = {group for group, _ in needed - set(now.values())}
    older = {group for copy, (group, _) in now.items() if copy in former}
    return needed <= had and bool(gone) and not gone & older


def check_written(num_unwritten: int) -> None:
    """L3 had time and room for everything, so it has every page of L2."""
    assert not num_unwritten, f"{num_unwritten} pages of L2 were not written to L3"
