"""Parameters as parts of a checkpoint's tensors, which are read or drawn whole."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from raydix.kernels.weights.rank_share import RankShare


@dataclass(frozen=True, slots=True, eq=False)
class WeightPart:
    """The part of one whole tensor that this rank keeps in `target`, a view of a parameter.

    Without more, it is all of it.
    """

    target: Tensor
    dim: int = 0
    """The dimension that is cut, counted from the end if it is negative."""
    start: int = 0
    """The index in `dim` at which the part begins. Rows past the end of the whole are zero."""
    whole_length: int | None = None
    """The length of the whole in `dim`; None: that of `target`."""

    @property
    def whole_shape(self) -> tuple[int, ...]:
        """The shape of the tensor in the checkpoint."""
        shape = list(self.target.shape)
        if self.whole_length is not None:
            shape[self.dim] = self.whole_length
        return tuple(shape)

    def fill(self, whole: Tensor) -> None:
        """Copy the part of `whole`, whose shape is `whole_shape`."""
        kept = self.target.shape[self.dim]
        start = min(self.start, whole.shape[self.dim])
        length = min(kept, whole.shape[self.dim] - start)
        self.target.narrow(self.dim, 0, length).copy_(whole.narrow(self.dim, start, length))
        self.target.narrow(self.dim, length, kept - length).zero_()

    def seat(self, index: int) -> "WeightPart":
        """The part in one seat of a bank, if `target` has seats in front.

        `dim` counts from the end.
        """
        return WeightPart(self.target[index], self.dim, self.start, self.whole_length)

    def elsewhere(self) -> "WeightPart":
        """The part of a rank that keeps nothing of the same whole."""
        nothing = self.target.narrow(self.dim, 0, 0)
        return WeightPart(nothing, self.dim, 0, self.whole_shape[self.dim])


def prefixed(prefix: str, parts: Mapping[str, WeightPart]) -> dict[str, WeightPart]:
    """The parts of something that belongs to something larger, by `prefix.NAME`."""
    return {f"{prefix}.{name}": part for name, part in parts.items()}


def cut(target: Tensor, share: RankShare, whole_length: int, dim: int) -> WeightPart:
    """One of equal parts, which lie one behind another."""
    return WeightPart(target, dim, share.rank * target.shape[dim], whole_length)


def cut_heads(target: Tensor, heads: range, num_heads: int) -> WeightPart:
    """The rows of some heads of `num_heads`."""
    rows_per_head = target.shape[0] // len(heads)
    return WeightPart(target, 0, heads.start * rows_per_head, num_heads * rows_per_head)


def first_rank_only(target: Tensor, share: RankShare) -> WeightPart:
    """All of it on rank 0 and zeros elsewhere: what is added once to a sum over ranks."""
    length = target.shape[-1]
    return WeightPart(target, -1, 0 if share.rank == 0 else length, length)
