"""Cut the way from one placement to another into relocations that need one empty seat of a rank.

Legend as in placement.py.
"""

import itertools
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from raydix.moe.placement import EMPTY, Placement

_TURNS_PER_LAYER = 4
"""The number of relocations that come before a further layer joins the turns."""


@dataclass(frozen=True, slots=True)
class Held:
    """A rank holds an expert of the relocation's layer."""

    rank: int
    expert: int


@dataclass(frozen=True, slots=True)
class Relocation:
    """Copies that come and copies that go in one layer, at most one of each for every rank.

    Once all `added` are there, one flip routes to them and away from all `dropped`, after which
    every expert still has a copy.
    """

    layer: int
    added: tuple[Held, ...]
    dropped: tuple[Held, ...]


@dataclass(frozen=True, slots=True)
class _Edge:
    """An expert comes to `target`, goes from `source`, or moves, so that it never lacks a copy."""

    expert: int
    source: int | None
    target: int | None


def relocations(current: Placement, wanted: Placement) -> Iterator[Relocation]:
    """What comes and goes, the layers by turns, to hold on every rank what `wanted` has there.

    They depend on nothing but empty seats: any order does, several at once too, if a rank that is
    in more of them has as many empty seats. Within a layer those that only drop come first.
    Which of its seats a rank uses is not compared. A layer is looked at when its first turn comes,
    as one of 256 experts takes up to 1 ms. Raises ValueError if the placements differ in shape.
    """
    is_held, is_wanted = current.physical_LRE != EMPTY, wanted.physical_LRE != EMPTY
    if is_held.shape != is_wanted.shape:
        raise ValueError(f"layers, ranks and experts {is_held.shape} against {is_wanted.shape}")

    changed_L = (is_held != is_wanted).any(axis=(1, 2))
    layers = iter(changed_L.nonzero()[0].tolist())
    return _in_turns(_relocations_of(layer, is_held[layer], is_wanted[layer]) for layer in layers)


def _in_turns(layers: Iterator[list[Relocation]]) -> Iterator[Relocation]:
    """One of each layer at a time: their seats are not the same, so none waits for another.

    Every few turns a further layer joins in.
    """
    taking_turns: deque[list[Relocation]] = deque()
    for number in itertools.count():
        is_due = number % _TURNS_PER_LAYER == 0 or not taking_turns
        if is_due and (further := next(layers, None)) is not None:
            taking_turns.appendleft(further)
        if not taking_turns:
            return
        layer = taking_turns.popleft()
        yield layer.pop(0)
        if layer:
            taking_turns.append(layer)


def _relocations_of(
    layer: int, is_held_RE: NDArray[np.bool_], is_wanted_RE: NDArray[np.bool_]
) -> list[Relocation]:
    sources: dict[int, list[int]] = defaultdict(list)
    targets: dict[int, list[int]] = defaultdict(list)
    for ranks, is_changed_RE in (
        (sources, is_held_RE & ~is_wanted_RE),
        (targets, is_wanted_RE & ~is_held_RE),
    ):
        for expert, rank in np.argwhere(is_changed_RE.T).tolist():
            ranks[expert].append(rank)
    kept = set(np.flatnonzero((is_held_RE & is_wanted_RE).any(axis=0)).tolist())

    edges: list[_Edge] = []
    for expert in sorted(sources.keys() | targets.keys()):
        edges += _edges(expert, sources[expert], targets[expert], is_kept=expert in kept)
    return _cut(layer, edges)


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

    What a rank takes in is paired with what it gives up, so its number of full seats moves
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
    return Relocation(
        layer=layer,
        added=tuple([Held(edge.target, edge.expert) for edge in walk if edge.target is not None]),
        dropped=tuple([Held(edge.source, edge.expert) for edge in walk if edge.source is not None]),
    )
