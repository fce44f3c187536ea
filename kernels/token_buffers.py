"""What the kernels that exchange tokens between ranks write to, and how it is laid out.

Legend: T tokens of a rank, C hidden, K experts per token, R ranks, M most tokens of a rank, N rows
of the buffers: R x M, X rows of outputs that come back: (R - 1) x M.
"""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenBuffers:
    """Of one rank, on its device; all ranks write to them. Contiguous, and zero at first."""

    x_NC: Tensor
    """Tokens of all ranks, first those of rank 0. Only rows that `ids_NK` or `origins_N` want."""
    weights_NK: Tensor
    """float32."""
    ids_NK: Tensor
    """int32: slots of this rank; -1 elsewhere."""
    origins_N: Tensor
    """int32: source rank x M + its token, where an output goes back to another rank; else -1."""
    returned_XC: Tensor
    """What other ranks add to this one's tokens: M rows of each other rank, in their order."""
    tokens_arrived_R: Tensor
    """int32: how much of that rank's pushes of tokens has ever ended; wraps around."""
    outputs_arrived_R: Tensor
    """int32: the same of outputs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLayout:
    """Where ranks write."""

    rank: int
    """This one."""
    num_ranks: int
    max_tokens: int
    """M."""
    slots_per_rank: int
    """Physical experts of rank r are r x this to (r + 1) x this - 1."""

    def place(self, rank: int, source: int) -> int:
        """Which M rows of `source`'s `returned_XC` are those of `rank`, another one."""
        return rank - 1 if rank > source else rank


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Arrivals:
    """What a rank waits for."""

    awaited_1: Tensor
    """int32, on the device: what `tokens_arrived_R` has once the latest tokens are there."""
    given_up_1: Tensor
    """int32, in pinned host memory: as soon as it is not 0 nobody is waited for."""
