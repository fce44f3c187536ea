"""Cut the way from one placement to another into relocations that need one empty slot of a rank.

Legend as in placement.py.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from raydix.moe.placement import EMPTY, Placement


@dataclass(frozen=True, slots=True)
class Held:
    """A rank holds an expert of the relocation's layer."""

    rank: int
    expert: int


@dataclass(frozen=True, slots=True)
class Relocation:
    """Copies that come and copies that go in one layer, at most one of each for every rank.

    Once all `added` are there, one flip routes to them and away from all `dropped`, after which
    every expert still has a copy. Those of `dropped` in `early` need not wait for `added`.
    """

    layer: int
    added: tuple[Held, ...]
    dropped: tuple[Held, ...]
    early: frozenset[Held]


@dataclass(frozen=True, slots=True)
class _Edge:
    """An expert comes to `target`, goes from `source`, or moves, so that it never lacks a copy."""

    expert: int
    source: int | None
    target: int | None


def relocations(current: Placement, wanted: Placement) -> list[Relocation]:
    """What comes and goes, layer by layer, to hold on every rank what `wanted` has there.

    They depend on nothing but empty slots: any order does, several at once too, if a rank that is
    in more of them has as many empty slots. Within a layer those that only drop come first.
    Which of its slots a rank uses is not compared.
    """
    is_held, is_wanted = current.physical_LRE != EMPTY, wanted.physical_LRE != EMPTY
    if is_held.shape != is_wanted.shape:
        raise ValueError(f"layers, ranks and experts {is_held.shape} against {is_wanted.shape}")

    found: list[Relocation] = []
    changed_L = (is_held != is_wanted).any(axis=(1, 2))
    for layer in changed_L.nonzero()[0]:
        edges: list[_Edge] = []
        for expert in (is_held[layer] != is_wanted[layer]).any(axis=0).nonzero()[0]:
            old, new = is_held[layer, :, expert], is_wanted[layer, :, expert]
            sources = (old & ~new).nonzero()[0].tolist()
            targets = (new & ~old).nonzero()[0].tolist()
            edges += _edges(int(expert), sources, targets, is_kept=bool((old & new).any()))
        found += _cut(int(layer), edges)
    return found


def _edges(
    expert: int, sources: list[int], targets: list[int], *, is_kept: bool
) -> Iterator[_Edge]:
    """One expert's changes. Unless a copy stays where it is, one moves: it is there all the while,
    so that all others can come and go as they like.
    """
    if sources and not is_kept:
        yield _Edge(expert, sources.pop(0), targets.pop(0))
    for target in targets:
        yield _Edge(expert, None, target)
    for source in sources:
        yield _Edge(expert, source, None)


def _cut(layer: int, edges: list[_Edge]) -> list[Relocation]:
    """Cut the graph of one layer's changes into cycles, and paths that visit no rank twice.

    What a rank takes in is paired with what it gives up, so its number of full slots moves
    from the old one straight to the new one.
    """
    leaving: dict[int, list[_Edge]] = defaultdict(list)
    starts: list[_Edge] = []
    num_entering: dict[int, int] = defaultdict(int)
    for edge in edges:
        if edge.source is None:
            starts.append(edge)
        else:
            leaving[edge.source].append(edge)
        if edge.target is not None:
            num_entering[edge.target] += 1

    # A rank that gives up more than it takes in starts a path with each of the rest: with what
    # goes for good first, as that makes room.
    for rank, rest in leaving.items():
        rest.sort(key=lambda edge: (edge.target is not None, edge.expert))
        num_more = max(0, len(rest) - num_entering[rank])
        starts += rest[:num_more]
        del rest[:num_more]

    walks = [walk for start in starts for walk in _walks(start, leaving)]
    for rank in sorted(leaving):
        while leaving[rank]:
            walks += _walks(leaving[rank].pop(0), leaving)
    walks.sort(key=lambda walk: any(edge.target is not None for edge in walk))
    return [_relocation(layer, walk) for walk in walks]


def _walks(start: _Edge, leaving: dict[int, list[_Edge]]) -> Iterator[list[_Edge]]:
    """Follow edges from `start` and take them out of `leaving`; a rank met again ends a cycle."""
    path = [start]
    while (rank := path[-1].target) is not None:
        first = next((i for i, edge in enumerate(path) if edge.source == rank), None)
        if first is not None:
            yield path[first:]
            del path[first:]
            if not path:
                return
        if not leaving[rank]:
            break
        path.append(leaving[rank].pop(0))
    yield path


def _relocation(layer: int, walk: list[_Edge]) -> Relocation:
    dropped = {
        Held(edge.source, edge.expert): edge.target is None
        for edge in walk
        if edge.source is not None
    }
    return Relocation(
        layer=layer,
        added=tuple(Held(edge.target, edge.expert) for edge in walk if edge.target is not None),
        dropped=tuple(dropped),
        early=frozenset(held for held, is_early in dropped.items() if is_early),
    )
