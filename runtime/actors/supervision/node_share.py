"""What an L2 gets of the memory that all L2s of a node share, and which of them make room. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from raydix.runtime.config.capacity import format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class L2Claim:
    """What one L2 takes of its node's memory, from before its arena is made until it has ended."""

    node: str
    name: str
    model_path: str
    size_bytes: int
    total_bytes: int | None
    """The most that all L2s of the node may take, as this one was configured; None: any number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class L2Wish:
    """What a model's L2 is to get."""

    size_bytes: int
    floor_bytes: int
    """The least with which it starts."""
    total_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptL2:
    """An L2 that no engine uses."""

    name: str
    size_bytes: int
    ends_in_s: float


def bytes_left(wish: L2Wish, claims: Sequence[L2Claim]) -> int:
    """How much of its wish an L2 may have beside those that are there.

    Each of them was promised that all together take no more than its `total_bytes`: the smallest
    counts.
    """
    bound = _bound(wish, claims)
    if bound is None:
        return wish.size_bytes
    left = bound - sum(claim.size_bytes for claim in claims)
    return max(0, min(wish.size_bytes, left))


def choose_to_end(kept: Sequence[KeptL2], lacking_bytes: int) -> list[KeptL2]:
    """The L2s without an engine that make room, those first that would end first; no more than it
    takes, or all.
    """
    chosen: list[KeptL2] = []
    for each in sorted(kept, key=lambda one: (one.ends_in_s, one.name)):
        if lacking_bytes <= 0:
            break
        chosen.append(each)
        lacking_bytes -= each.size_bytes
    return chosen


def too_little(wish: L2Wish, claims: Sequence[L2Claim]) -> str:
    """What to tell somebody whose L2 would get less than its floor."""
    taken = ", ".join(
        f"{claim.name} of {claim.model_path} {format_bytes(claim.size_bytes)}" for claim in claims
    )
    left, bound = bytes_left(wish, claims), _bound(wish, claims)
    return (
        f"cache.l2.total_bytes_per_node leaves {format_bytes(left)} for this model's L2, which "
        f"needs {format_bytes(wish.floor_bytes)} at least: of {format_bytes(bound or 0)} others "
        f"have taken {taken or 'nothing'}. Lower cache.l2.floor_bytes or another model's "
        "cache.l2.bytes_per_node, raise cache.l2.total_bytes_per_node of all, or stop one of them "
        "(raydix stop --cache)."
    )


def _bound(wish: L2Wish, claims: Sequence[L2Claim]) -> int | None:
    bounds = [wish.total_bytes, *[claim.total_bytes for claim in claims]]
    return min([bound for bound in bounds if bound is not None], default=None)
