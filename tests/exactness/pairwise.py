"""Few cases in which every two values of different factors meet."""

import itertools
import random
from collections.abc import Mapping, Sequence
from typing import Any

Case = dict[str, Any]
Pair = tuple[tuple[str, int], tuple[str, int]]
"""Two factors, each with the index of a value."""


def pairwise(factors: Mapping[str, Sequence[Any]], seed: int) -> list[Case]:
    """Choose cases greedily until every pair of values of two factors occurs in one of them."""
    rng = random.Random(seed)
    uncovered = {
        ((left, i), (right, j))
        for left, right in itertools.combinations(factors, 2)
        for i in range(len(factors[left]))
        for j in range(len(factors[right]))
    }
    cases: list[Case] = []
    while uncovered:
        chosen = _extend(dict(min(uncovered)), factors, uncovered, rng)
        uncovered -= set(_pairs(chosen, factors))
        cases.append({name: values[chosen[name]] for name, values in factors.items()})
    return cases


def _extend(
    chosen: dict[str, int],
    factors: Mapping[str, Sequence[Any]],
    uncovered: set[Pair],
    rng: random.Random,
) -> dict[str, int]:
    """Give each other factor, in random order, the value that covers most new pairs."""
    others = [name for name in factors if name not in chosen]
    rng.shuffle(others)
    for name in others:
        indices = list(range(len(factors[name])))
        rng.shuffle(indices)
        chosen[name] = max(
            indices, key=lambda i: len(uncovered.intersection(_pairs({**chosen, name: i}, factors)))
        )
    return chosen


def _pairs(chosen: Mapping[str, int], factors: Mapping[str, Sequence[Any]]) -> list[Pair]:
    named = [(name, chosen[name]) for name in factors if name in chosen]
    return list(itertools.combinations(named, 2))
