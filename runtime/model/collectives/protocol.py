"""What the ranks of a lane do together, in the model's forward pass and nowhere else."""

from typing import Protocol

from torch import Tensor


class Collectives(Protocol):
    """Every rank of a lane calls the same operations on the same shapes in the same order.

    Their results have the same bits on every rank, so that whatever ranks then compute from them
    by the same kernels (the choice of experts, a sampled token) is the same, too, and need not be
    sent.
    """

    @property
    def rank(self) -> int:
        """The number of this rank, from 0."""

    @property
    def size(self) -> int:
        """Ranks of the lane."""

    @property
    def is_capturable(self) -> bool:
        """May a step that calls them be captured in a CUDA graph?"""

    def sum(self, part: Tensor) -> Tensor:
        """The sum of all ranks' parts, which are contiguous; may overwrite this rank's."""

    def gather(self, part_RV: Tensor) -> Tensor:
        """The columns of all ranks, in their order, in one contiguous [R, size x V]."""

    def close(self) -> None:
        """End it, from any thread: no rank waits for another any longer, though one may fail."""
