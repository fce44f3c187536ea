"""What the kernels that exchange tokens between ranks write to, and how it is laid out.

Legend: T tokens of a rank, C hidden, K experts per token, R ranks, M most tokens of a rank, N rows
of the buffers: R x M, X rows of outputs that come back: (R - 1) x M.
"""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenBuffers:
    """One rank's buffers, to which all ranks write; on its device, contiguous, zero at first."""

    x_NC: Tensor
    """The tokens of all ranks in order; only rows that `ids_NK` or `origins_N` want are there.

    Packed ones are wider or narrower than outputs, and of another dtype.
    """
    weights_NK: Tensor
    """The weights of each token's experts, float32."""
    ids_NK: Tensor
    """The seats on this rank of each token's experts, int32; -1 for experts elsewhere."""
    origins_N: Tensor
    """Where each row's output returns to, int32: source rank x M + token; -1: no other rank."""
    returned_XC: Tensor
    """The outputs that other ranks add to this one's tokens: M rows of each, in rank order."""
    tokens_arrived_R: Tensor
    """How much of its pushes of tokens each rank has ended so far, int32; wraps around."""
    outputs_arrived_R: Tensor
    """How much of its pushes of outputs each rank has ended so far, int32; wraps around."""

    @property
    def num_bytes(self) -> int:
        """What all of them take."""
        rows = (self.x_NC, self.weights_NK, self.ids_NK, self.origins_N, self.returned_XC)
        return sum(each.nbytes for each in (*rows, self.tokens_arrived_R, self.outputs_arrived_R))


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLayout:
    """What tells a rank where to write: its number, and the sizes of buffers."""

    rank: int
    """The rank that writes."""
    num_ranks: int
    max_tokens: int
    """M: the most tokens of a rank."""
    seats_per_rank: int
    """The number S of seats of a rank: rank r holds physical experts r x S to (r + 1) x S - 1."""

    def place(self, rank: int, source: int) -> int:
        """The place of `rank`'s block of M rows in the `returned_XC` of `source`, another rank."""
        return rank - 1 if rank > source else rank


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Arrivals:
    """The counters by which a rank waits for tokens."""

    awaited_1: Tensor
    """The value of `tokens_arrived_R` once the latest tokens have come, int32, on the device."""
    given_up_1: Tensor
    """One int32 in pinned host memory: as soon as it is not 0, the waits for other ranks end."""
