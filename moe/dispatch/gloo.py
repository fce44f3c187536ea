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
from raydix.moe.dispatch.protocol import DispatchForm, DispatchShape, DispatchSizes, Received


class GlooExchange:
    """An `Exchange` by Gloo. It holds no connection: only its dispatcher decides when that ends."""

    def __init__(
        self,
        dispatcher: "GlooDispatcher",
        sizes: DispatchSizes,
        *,
        packed_TB: Tensor,
        device: torch.device,
    ) -> None:
        """Start the dispatch."""
        self._dispatcher = dispatcher
        self._device = device
        num_ranks = dispatcher.shape.num_ranks
        self._own_R = [packed_TB.shape[0]] * num_ranks
        self._tokens_R = list(sizes.tokens_R)
        self._underway = dispatcher.exchange(
            packed_TB.repeat(num_ranks, 1), self._own_R, self._tokens_R
        )

    def receive(self) -> Received:
        """Return the rows that have reached this rank, as `Exchange.receive` says."""
        shape = self._dispatcher.shape
        x_NC, weights_NK, ids_NK = _unpack(self._underway.wait(), shape)

        local_ids_NK = ids_NK - self._dispatcher.rank * shape.seats_per_rank
        is_elsewhere_NK = (local_ids_NK < 0) | (local_ids_NK >= shape.seats_per_rank)
        return Received(
            x_NC.to(self._device),
            weights_NK.to(self._device),
            local_ids_NK.masked_fill_(is_elsewhere_NK, -1).to(self._device),
        )

    def send_back(self, out_NC: Tensor) -> None:
        """Start the combine with this rank's outputs, as `Exchange.send_back` says."""
        # As bytes: gloo does not know every dtype.
        self._underway = self._dispatcher.exchange(
            _as_bytes(out_NC.cpu()), self._tokens_R, self._own_R
        )

    def combine(self) -> Tensor:
        """Return the sum of outputs for each token, as `Exchange.combine` says."""
        shape = self._dispatcher.shape
        out_RTC = self._underway.wait().view(shape.dtype)
        out_RTC = out_RTC.view(shape.num_ranks, self._own_R[0], shape.hidden_size)

        total_TC = out_RTC[0].float()
        for part_TC in out_RTC[1:]:
            total_TC = total_TC + part_TC
        return total_TC.to(shape.dtype).to(self._device)


class _Underway:
    """Rows on their way in both directions."""

    def __init__(self, work: Work, received_XB: Tensor, sent_XB: Tensor) -> None:
        self._work: Work | None = work
        self._received_XB = received_XB
        # Kept as long as it is read.
        self._sent_XB = sent_XB

    def wait(self) -> Tensor:
        """What has come."""
        assert self._work is not None, "rows come once"
        self._work.wait()
        # It would keep the connection open.
        self._work = None
        return self._received_XB


class GlooDispatcher:
    """A `Dispatcher` by Gloo. Ranks may be threads of one process. Tensors pass the host."""

    captured_forms: frozenset[DispatchForm] = frozenset()
    buffer_bytes = 0

    def __init__(self, store: Store, rank: int, shape: DispatchShape) -> None:
        """Connect; waits for every rank."""
        self.rank = rank
        self.shape = shape
        self._group: ProcessGroupGloo | None = connect_gloo(store, rank, shape.num_ranks)

    def send(
        self, x_TC: Tensor, weights_TK: Tensor, physical_ids_TK: Tensor, sizes: DispatchSizes
    ) -> GlooExchange:
        """Start the dispatch of this rank's tokens, as `Dispatcher.send` says."""
        assert sizes.tokens_R[self.rank] == x_TC.shape[0], "sizes are those of the step"
        packed_TB = _pack(x_TC, weights_TK, physical_ids_TK)
        return GlooExchange(self, sizes, packed_TB=packed_TB, device=x_TC.device)

    def exchange(self, sent_XB: Tensor, sent_R: list[int], received_R: list[int]) -> _Underway:
        """Start sending each rank its rows, which lie one behind another."""
        if self._group is None:
            raise RuntimeError("the dispatcher of this rank is closed")
        received_XB = sent_XB.new_empty(sum(received_R), sent_XB.shape[1])
        work = self._group.alltoall_base(received_XB, sent_XB, received_R, sent_R)
        return _Underway(work, received_XB, sent_XB)

    def close(self) -> None:
        """End the dispatcher, as `Dispatcher.close` says.

        The end of this rank's connections ends its peers' waits.
        """
        self._group = None


def _pack(x_TC: Tensor, weights_TK: Tensor, ids_TK: Tensor) -> Tensor:
    """Pack hidden states, weights and ids into rows of bytes, which one exchange takes."""
    columns = (weights_TK, ids_TK.int(), x_TC)
    return torch.cat([_as_bytes(each.cpu()) for each in columns], 1)


def _as_bytes(columns_TX: Tensor) -> Tensor:
    # A copy has the strides of its shape, where a view of few elements may have any.
    copied_TX = columns_TX.clone(memory_format=torch.contiguous_format)
    return copied_TX.view(torch.uint8)


def _unpack(packed_NB: Tensor, shape: DispatchShape) -> tuple[Tensor, Tensor, Tensor]:
    """Unpack hidden states, weights and ids."""
    num_bytes = 4 * shape.experts_per_token
    weights_NB, ids_NB, x_NB = packed_NB.split(
        [num_bytes, num_bytes, packed_NB.shape[1] - 2 * num_bytes], 1
    )
    return (
        x_NB.contiguous().view(shape.sent_dtype),
        weights_NB.contiguous().view(torch.float32),
        ids_NB.contiguous().view(torch.int32),
    )
