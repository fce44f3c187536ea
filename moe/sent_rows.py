"""Which of a step's rows a rank sends to experts.

The ranks of a lane compute the same rows of attention. Each sends a slice of them, and the sum over
the lane, which follows every feed-forward, puts the slices together.

Legend: T rows of the lane, X rows of the slice, C hidden, K experts per token.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from raydix.moe.dispatch.protocol import DispatchSizes


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SentRows:
    """A rank's slice of the rows of its lane's step."""

    first: int
    """The index in T of the slice's first row."""
    num_rows: int
    """The slice's rows: this rank's entry of `sizes`. Any past the lane's last are padding."""
    sizes: DispatchSizes
    is_padding_T: Tensor | None = None
    """Whether each of the lane's rows goes nowhere, bool; None: every row goes to experts."""
    stream: torch.cuda.Stream | None = None
    """The stream on which rows travel while the current one computes; None: the current one."""

    def own(self, x_TC: Tensor) -> Tensor:
        """The slice, [X, C], with zeros where the lane has no more rows."""
        part_XC = x_TC[self.first : self.first + self.num_rows]
        missing = self.num_rows - part_XC.shape[0]
        return functional.pad(part_XC, (0, 0, 0, missing)) if missing else part_XC

    def without_padding(self, ids_XK: Tensor, num_lane_rows: int) -> Tensor:
        """The slice's expert ids, with -1 in rows of padding."""
        is_padding_T = self.is_padding_T
        if is_padding_T is None:
            if self.first + self.num_rows <= num_lane_rows:
                return ids_XK
            is_padding_T = torch.zeros(num_lane_rows, dtype=torch.bool, device=ids_XK.device)

        is_padding_X = is_padding_T[self.first : self.first + self.num_rows]
        missing = self.num_rows - is_padding_X.shape[0]
        is_padding_X = functional.pad(is_padding_X, (0, missing), value=True)
        return ids_XK.masked_fill(is_padding_X[:, None], -1)

    def among_lane(self, out_XC: Tensor, num_lane_rows: int) -> Tensor:
        """The slice's outputs at their places, [T, C], with zeros at those of other ranks."""
        if self.first == 0 and self.num_rows == num_lane_rows:
            return out_XC
        out_TC = torch.zeros(
            num_lane_rows, out_XC.shape[1], dtype=out_XC.dtype, device=out_XC.device
        )
        part_XC = out_TC[self.first : self.first + self.num_rows]
        part_XC.copy_(out_XC[: part_XC.shape[0]])
        return out_TC
