"""What a request has from its admission until it waits again or ends."""

from collections.abc import Sequence
from dataclasses import dataclass

from raydix.runtime.messages.arrays import Int32Array
from raydix.runtime.messages.plan import PromptLogprobs, TokenLogprobs


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Where a run takes up its chain: what it gets from the caches, and what it owes them."""

    num_pages: int
    """The number of cached pages that the run begins behind, loaded ones included."""
    tiers: bytes
    """The tier that each of these `num_pages` pages is taken from, one byte per page."""
    loads: tuple[Sequence[int], ...]
    """Per KV group, the pages that are loaded from L2, by their place in the chain."""
    num_left_pages: int
    """The number of further pages that L2 holds and that are computed because that is cheaper."""
    checkpoints: tuple[int, ...]
    """The places in the chain, in pages, before which the run leaves windows for L2 to keep."""


NOWHERE = Start(num_pages=0, tiers=b"", loads=(), num_left_pages=0, checkpoints=())
"""The start of a request that does not run: nothing is cached for it."""


@dataclass(frozen=True, slots=True)
class RowOutcome:
    """What one computed row means for its request. `token_ids`: the one that it sampled, if any."""

    num_computed: int
    token_ids: Int32Array
    logprobs: TokenLogprobs | None
    prompt_logprobs: PromptLogprobs | None
