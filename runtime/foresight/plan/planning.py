"""What sizes of L1, L2 and L3 would find of a trace: hits by tier, beside LRU, MIN and no bound.

The quick depth. Each tier is replayed by itself at each size, because with write-through a tier's
content follows from what is asked for alone: of a prompt L1 serves what it has, L2 what it has
beyond that, L3 the rest that it has. So the hits of all pairs of sizes follow from one replay a
size. Of write-back and selective copies this depth says nothing.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from raydix.runtime.config.evictions import NOT_OF_L2, NOT_OF_L3
from raydix.runtime.config.policies import EvictionPolicy
from raydix.runtime.foresight.plan.limits import (
    Chain,
    answers_of,
    bypassed_min_blocks,
    chains_of,
    infinite_blocks,
    min_blocks,
)
from raydix.runtime.foresight.plan.quick import HostTier, Tier, TreeTier
from raydix.runtime.foresight.traces import TraceRequest

GIB = 1 << 30
QUICK_ERROR = (
    "0.3 points from an independent model (benchmarks.planning), 0.1 from an engine that answers "
    "one request after the other; more where many run at once, or a trace does not tell answers"
)
"""What is known of how far the quick depth is off."""
_NOT_OF = {"L2": NOT_OF_L2, "L3": NOT_OF_L3}


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked of a trace."""

    requests: Sequence[TraceRequest]
    block_tokens: int
    eviction: EvictionPolicy
    count_after: float = 0.0
    """The leading part of the requests that fill the tiers and are not counted."""
    with_partial: bool = False
    """Whether a last block that is not whole takes room, as other simulators have it; Raydix keeps
    whole pages alone. Answers are then left out.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class TierSize:
    """A size of a tier: bytes, and the trace's blocks that they hold."""

    num_bytes: int
    num_blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The sizes of the tiers that are compared, in ascending order."""

    l1: Sequence[TierSize]
    l2: Sequence[TierSize]
    l3: Sequence[TierSize | None]
    """None: without a bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TierPoint:
    """What one tier by itself finds at one size, in percent of the prompts' tokens."""

    tier: str
    num_bytes: int
    num_blocks: int
    lru: float
    chosen: float
    min: float
    """Belady's, which no policy of this tier beats: L1 takes in all blocks, others need not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """What the tiers find together, in percent of the prompts' tokens."""

    l1_bytes: int
    l2_bytes: int
    l3_bytes: int | None
    l1: float
    l2: float
    l3: float

    @property
    def total(self) -> float:
        """What need not be computed."""
        return self.l1 + self.l2 + self.l3


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """What a tier's next size would add to one choice of sizes."""

    tier: str
    from_bytes: int
    to_bytes: int
    points: float
    """Percent of the prompts' tokens that need not be computed any more."""

    @property
    def points_per_gib(self) -> float:
        """What each GiB more adds."""
        return self.points * GIB / (self.to_bytes - self.from_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The answer. `points` by tier and size, `mixes` by sizes, each in ascending order."""

    points: tuple[TierPoint, ...]
    mixes: tuple[Mix, ...]
    infinite: float
    """What a cache without bounds would find."""

    def gains(self, mix: Mix) -> list[Gain]:
        """What the next size of each bounded tier would add to a choice of sizes; best first."""
        found = []
        for tier in ("l1_bytes", "l2_bytes", "l3_bytes"):
            larger = [each for each in self.mixes if _differs_in(mix, each, tier)]
            if larger:
                following = min(larger, key=lambda each: int(getattr(each, tier)))
                found.append(
                    Gain(
                        tier=tier.removesuffix("_bytes").upper(),
                        from_bytes=int(getattr(mix, tier)),
                        to_bytes=int(getattr(following, tier)),
                        points=following.total - mix.total,
                    )
                )
        return sorted(found, key=lambda gain: -gain.points_per_gib)

    def figures(self) -> dict[str, Any]:
        """The figures under names that programs read."""
        return {
            "depth": "quick",
            "profile": None,
            "error": QUICK_ERROR,
            "infinite": self.infinite,
            "tiers": [
                {name: getattr(point, name) for name in TierPoint.__slots__}
                for point in self.points
            ],
            "mixes": [
                {name: getattr(mix, name) for name in Mix.__slots__} | {"total": mix.total}
                for mix in self.mixes
            ],
        }


def _differs_in(mix: Mix, other: Mix, tier: str) -> bool:
    """Whether another choice differs by a larger, bounded size of this tier alone."""
    sizes = {"l1_bytes", "l2_bytes", "l3_bytes"}
    own, others = getattr(mix, tier), getattr(other, tier)
    is_larger = own is not None and others is not None and others > own
    return is_larger and all(getattr(mix, each) == getattr(other, each) for each in sizes - {tier})


def make_plan(question: Question, sizes: Sizes) -> Plan:
    """Replay the trace through each tier at each size."""
    counted = _Counted(question)
    points: list[TierPoint] = []
    l1 = dict(_replay_tier(counted, "L1", sizes.l1, points))
    l2 = dict(_replay_tier(counted, "L2", sizes.l2, points))
    bounded = [size for size in sizes.l3 if size is not None]
    l3: dict[int | None, list[int]] = {}
    l3 |= _replay_tier(counted, "L3", bounded, points)
    infinite = infinite_blocks(counted.chains, counted.answers)
    if None in sizes.l3:
        l3[None] = infinite

    mixes = [
        counted.mix((in_l1, in_l2, in_l3), (l1[in_l1], l2[in_l2], l3[in_l3]))
        for in_l1 in l1
        for in_l2 in l2
        for in_l3 in l3
    ]
    return Plan(points=tuple(points), mixes=tuple(mixes), infinite=counted.percent(infinite))


class _Counted:
    """A trace as a question sees it."""

    def __init__(self, question: Question) -> None:
        self.question = question
        requests = question.requests
        self.chains: list[Chain] = chains_of(requests, with_partial=question.with_partial)
        # Behind a last block that is not whole comes nothing.
        self.answers: list[Chain] = (
            [()] * len(requests) if question.with_partial else answers_of(requests)
        )
        each = zip(requests, self.chains, self.answers, strict=True)
        self._requests = [
            replace(request, blocks=chain, answer_blocks=answer) for request, chain, answer in each
        ]
        self._first = int(question.count_after * len(requests))
        self._num_whole = [len(request.blocks) for request in requests]
        self._num_tokens = [request.num_tokens for request in requests]
        self.num_distinct = len(set().union(*self.chains, *self.answers))
        """All blocks of the trace."""

    def replay(self, tier: Tier) -> list[int]:
        """How many of each prompt's blocks a tier has when they are asked for."""
        found = []
        for request in self._requests:
            found.append(tier.begin(request, request.arrival_s))
            tier.end(request, request.retention, request.arrival_s)
        return found

    def percent(self, found: Sequence[int]) -> float:
        """These numbers of blocks of each prompt, as percent of the prompts' tokens."""
        num_hits = num_asked = 0
        each = zip(found, self._num_whole, self._num_tokens, strict=True)
        for blocks, num_whole, num_tokens in islice(each, self._first, None):
            # Beyond the whole blocks comes the rest of the prompt.
            is_all = blocks > num_whole
            num_found = num_tokens if is_all else blocks * self.question.block_tokens
            # The last token's logits are computed, whatever is there.
            num_hits += num_found if self.question.with_partial else min(num_found, num_tokens - 1)
            num_asked += num_tokens
        return 100 * num_hits / num_asked

    def mix(
        self, sizes: tuple[int, int, int | None], found: tuple[list[int], list[int], list[int]]
    ) -> Mix:
        """What each tier adds to the ones before it."""
        in_l1, in_l2, in_l3 = found
        to_l2 = [max(pair) for pair in zip(in_l1, in_l2, strict=True)]
        to_l3 = [max(pair) for pair in zip(to_l2, in_l3, strict=True)]
        l1, l2, l3 = (self.percent(each) for each in (in_l1, to_l2, to_l3))
        return Mix(
            l1_bytes=sizes[0],
            l2_bytes=sizes[1],
            l3_bytes=sizes[2],
            l1=l1,
            l2=l2 - l1,
            l3=l3 - l2,
        )


def _replay_tier(
    counted: _Counted, tier: str, sizes: Sequence[TierSize], points: list[TierPoint]
) -> Iterator[tuple[int, list[int]]]:
    """What a tier finds at each size; each that holds a block becomes a point, too."""
    make, best = (TreeTier, min_blocks) if tier == "L1" else (HostTier, bypassed_min_blocks)
    eviction = counted.question.eviction
    if eviction in _NOT_OF.get(tier, ()):
        # No configuration gives that policy to this tier.
        eviction = EvictionPolicy.LRU
    for size in sizes:
        # What holds every block has no use for more; there is none if all prompts are shorter.
        num_blocks = min(size.num_blocks, counted.num_distinct)
        if num_blocks < 1:
            yield size.num_bytes, [0] * len(counted.chains)
            continue
        chosen = counted.replay(make(num_blocks, eviction))
        is_lru = eviction is EvictionPolicy.LRU
        lru = chosen if is_lru else counted.replay(make(num_blocks, EvictionPolicy.LRU))
        points.append(
            TierPoint(
                tier=tier,
                num_bytes=size.num_bytes,
                num_blocks=size.num_blocks,
                lru=counted.percent(lru),
                chosen=counted.percent(chosen),
                min=counted.percent(best(counted.chains, num_blocks, counted.answers)),
            )
        )
        yield size.num_bytes, chosen
