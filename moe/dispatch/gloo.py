"""A dispatcher for the cpu: every row goes to every rank, at a place that all of them know.

Rows of rank r are behind those of the ranks before it, so no counts have to be exchanged. What a
row wants of other ranks' experts reads -1 here.

Legend: T tokens of this rank, C hidden, K experts per token, R ranks, N rows of all ranks, B bytes
of a packed row.
"""

import torch
from torch import Tensor
from torch.distributed import Store, Work
from torch.distributed.distributed_c10d import ProcessGroupGloo

from raydix.moe.dispatch.gloo_group import connect_gloo
from raydix.moe.dispatch.protocol import DispatchShape, DispatchSizes, Received


class GlooExchange:
    """Is `Exchange`."""

    def __init__(
        self,
        group: ProcessGroupGloo,
        rank: int,
        shape: DispatchShape,
        sizes: DispatchSizes,
        *,
        packed_TB: Tensor,
        device: torch.device,
    ) -> None:
        """Start the dispatch."""
        self._group = group
        self._shape = shape
        self._device = device
        self._first_id = rank * shape.slots_per_rank
        self._sent_R = [packed_TB.shape[0]] * shape.num_ranks
        self._tokens_R = list(sizes.tokens_R)

        sent_XB = packed_TB.repeat(shape.num_ranks, 1)
        self._packed_NB = packed_TB.new_empty(sum(self._tokens_R), packed_TB.shape[1])
        # Named, so that it lives as long as it is sent.
        self._sent = sent_XB
        self._out_XC: Tensor | None = None
        self._work: Work = group.alltoall_base(
            self._packed_NB, sent_XB, self._tokens_R, self._sent_R
        )

    def receive(self) -> Received:
        """See `Exchange`."""
        self._work.wait()
        shape = self._shape
        x_NC, weights_NK, ids_NK = _unpack(self._packed_NB, shape)

        local_ids_NK = ids_NK - self._first_id
        is_elsewhere_NK = (local_ids_NK < 0) | (local_ids_NK >= shape.slots_per_rank)
        return Received(
            x_NC.to(self._device),
            weights_NK.to(self._device),
            local_ids_NK.masked_fill_(is_elsewhere_NK, -1).to(self._device),
        )

    def send_back(self, out_NC: Tensor) -> None:
        """See `Exchange`."""
        # As bytes: gloo does not know every dtype.
        self._sent = out_NC.cpu().contiguous().view(torch.uint8)
        self._out_XC = self._sent.new_empty(sum(self._sent_R), self._sent.shape[1])
        self._work = self._group.alltoall_base(
            self._out_XC, self._sent, self._sent_R, self._tokens_R
        )

    def combine(self) -> Tensor:
        """See `Exchange`."""
        assert self._out_XC is not None, "send_back comes first"
        self._work.wait()
        shape = self._shape
        by_rank_RTC = self._out_XC.view(shape.dtype).view(
            shape.num_ranks, self._sent_R[0], shape.hidden_size
        )

        total_TC = by_rank_RTC[0].float()
        for part_TC in by_rank_RTC[1:]:
            total_TC = total_TC + part_TC
        return total_TC.to(shape.dtype).to(self._device)


class GlooDispatcher:
    """Is `Dispatcher`. Ranks may be threads of one process. Tensors of a device pass the host."""

    is_capturable = False

    def __init__(self, store: Store, rank: int, shape: DispatchShape) -> None:
        """Connect; waits for every rank."""
        self._rank = rank
        self._shape = shape
        self._group: ProcessGroupGloo | None = connect_gloo(store, rank, shape.num_ranks)

    def send(
        self, x_TC: Tensor, weights_TK: Tensor, physical_ids_TK: Tensor, sizes: DispatchSizes
    ) -> GlooExchange:
        """See `Dispatcher`."""
        if self._group is None:
            raise RuntimeError("the dispatcher of this rank is closed")
        assert sizes.tokens_R[self._rank] == x_TC.shape[0], "sizes are those of the step"
        return GlooExchange(
            self._group,
            self._rank,
            self._shape,
            sizes,
            packed_TB=_pack(x_TC, weights_TK, physical_ids_TK),
            device=x_TC.device,
        )

    def close(self) -> None:
        """See `Dispatcher`. The end of this rank's connections ends its peers' waits."""
        self._group = None


def _pack(x_TC: Tensor, weights_TK: Tensor, ids_TK: Tensor) -> Tensor:
    """Rows of bytes: one exchange takes all three."""
    columns = (weights_TK, ids_TK.int(), x_TC)
    return torch.cat([each.cpu().contiguous().view(torch.uint8) for each in columns], 1)


def _unpack(packed_NB: Tensor, shape: DispatchShape) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states, weights, ids."""
    num_bytes = 4 * shape.experts_per_token
    weights_NB, ids_NB, x_NB = packed_NB.split(
        [num_bytes, num_bytes, packed_NB.shape[1] - 2 * num_bytes], 1
    )
    return (
        x_NB.contiguous().view(shape.dtype),
        weights_NB.contiguous().view(torch.float32),
        ids_NB.contiguous().view(torch.int32),
    )
