"""Dispatch by NCCL: every rank gets the tokens of all, and outputs go back to where they belong.

Rows of rank r are behind those of the ranks before it, so no counts have to be exchanged.

Legend: as in `protocol`. P columns of a packed choice: 2 x K.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.distributed import Store
from torch.distributed.distributed_c10d import AllgatherOptions, AllToAllOptions

from raydix.moe.dispatch.nccl_group import connect_nccl, end_nccl
from raydix.moe.dispatch.protocol import ALL_FORMS, DispatchShape, DispatchSizes, Received

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import ProcessGroupNCCL


class NcclDispatcher:
    """`Dispatcher` for the current device. Its kernels run on the current stream."""

    captured_forms = ALL_FORMS
    buffer_bytes = 0

    def __init__(self, store: Store, rank: int, shape: DispatchShape, device: torch.device) -> None:
        """Connect; waits for every rank. The calling thread is on `device`."""
        self._rank = rank
        self._shape = shape
        self._group: ProcessGroupNCCL | None = connect_nccl(store, rank, shape.num_ranks)
        self._warm_up(device)

    def send(
        self, x_TC: Tensor, weights_TK: Tensor, physical_ids_TK: Tensor, sizes: DispatchSizes
    ) -> "NcclExchange":
        """Start the dispatch of this rank's tokens, as `Dispatcher.send` says.

        Raises RuntimeError once it is closed.
        """
        group = self._open_group()
        assert sizes.tokens_R[self._rank] == x_TC.shape[0], "sizes are those of the step"

        packed_TP = torch.cat([physical_ids_TK.int(), weights_TK.view(torch.int32)], 1)
        return NcclExchange(
            self._open_group,
            self._rank,
            self._shape.seats_per_rank,
            x_NC=gather_rows(group, x_TC, sizes.tokens_R),
            packed_NP=gather_rows(group, packed_TP, sizes.tokens_R),
            tokens_R=sizes.tokens_R,
        )

    def close(self) -> None:
        """End the dispatcher, as `Dispatcher.close` says."""
        group, self._group = self._group, None
        if group is not None:
            end_nccl(group)

    def _open_group(self) -> "ProcessGroupNCCL":
        if self._group is None:
            raise RuntimeError("the dispatcher of this rank is closed")
        return self._group

    def _warm_up(self, device: torch.device) -> None:
        """Connect the ranks by an operation of each kind; the first one must not be captured."""
        shape = self._shape
        uneven = (1, *(2,) * (shape.num_ranks - 1))
        for tokens_R in (uneven, (1,) * shape.num_ranks):
            num_tokens = tokens_R[self._rank]
            exchange = self.send(
                torch.zeros(num_tokens, shape.sent_size, dtype=shape.sent_dtype, device=device),
                torch.zeros(num_tokens, shape.experts_per_token, device=device),
                torch.full((num_tokens, shape.experts_per_token), -1, device=device),
                DispatchSizes(tokens_R),
            )
            num_rows = len(exchange.receive().x_NC)
            exchange.send_back(
                torch.zeros(num_rows, shape.hidden_size, dtype=shape.dtype, device=device)
            )
            exchange.combine()
        torch.cuda.synchronize(device)


class NcclExchange:
    """An `Exchange` by NCCL. `open_group` raises RuntimeError once the dispatcher is closed."""

    def __init__(
        self,
        open_group: Callable[[], "ProcessGroupNCCL"],
        rank: int,
        seats_per_rank: int,
        *,
        x_NC: Tensor,
        packed_NP: Tensor,
        tokens_R: tuple[int, ...],
    ) -> None:
        self._open_group = open_group
        self._rank = rank
        self._seats = seats_per_rank
        self._x_NC = x_NC
        self._packed_NP = packed_NP
        self._tokens_R = tokens_R
        self._parts_RTC: Tensor | None = None

    def receive(self) -> Received:
        """Return the rows that have reached this rank, as `Exchange.receive` says."""
        ids_NK, weights_NK = self._packed_NP.chunk(2, 1)
        seats_NK = ids_NK - self._rank * self._seats
        is_elsewhere_NK = (seats_NK < 0) | (seats_NK >= self._seats)
        return Received(
            self._x_NC,
            weights_NK.contiguous().view(torch.float32),
            seats_NK.masked_fill_(is_elsewhere_NK, -1),
        )

    def send_back(self, out_NC: Tensor) -> None:
        """Start the combine with this rank's outputs, as `Exchange.send_back` says."""
        num_ranks, num_tokens = len(self._tokens_R), self._tokens_R[self._rank]
        parts_XC = out_NC.new_empty(num_ranks * num_tokens, out_NC.shape[1])
        self._open_group().alltoall_base(
            parts_XC, out_NC, [num_tokens] * num_ranks, list(self._tokens_R), _on_current_stream()
        )
        self._parts_RTC = parts_XC.view(num_ranks, num_tokens, out_NC.shape[1])

    def combine(self) -> Tensor:
        """Return the sum of outputs for each token, as `Exchange.combine` says."""
        assert self._parts_RTC is not None, "send_back comes first"
        total_TC = self._parts_RTC[0].float()
        for part_TC in self._parts_RTC[1:]:
            total_TC = total_TC + part_TC
        return total_TC.to(self._parts_RTC.dtype)


def gather_rows(group: "ProcessGroupNCCL", rows_TX: Tensor, tokens_R: tuple[int, ...]) -> Tensor:
    """The rows of all ranks, one rank behind another."""
    all_NX = rows_TX.new_empty(sum(tokens_R), rows_TX.shape[1])
    options = AllgatherOptions()
    options.asyncOp = False
    if len(set(tokens_R)) == 1:
        group._allgather_base(all_NX, rows_TX, options)
    else:
        group.allgather([list(all_NX.split(tokens_R))], [rows_TX], options)
    return all_NX


def _on_current_stream() -> AllToAllOptions:
    """Options that run an operation on the current stream, as all of the model run."""
    options = AllToAllOptions()
    options.asyncOp = False
    return options
