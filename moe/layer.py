"""The sparse feed-forward layer: a router and its experts.

Legend: T rows of the lane's step, C hidden.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from raydix.kernels.glu_form import GluForm
from raydix.kernels.ops import ModelOps
from raydix.kernels.rank_share import RankShare
from raydix.kernels.routing import Routing
from raydix.kernels.weight_part import WeightPart
from raydix.moe.dispatch.loopback import LOOPBACK
from raydix.moe.dispatch.protocol import Dispatcher, DispatchSizes, Exchange
from raydix.moe.experts import Experts
from raydix.moe.router import Router
from raydix.moe.sent_rows import SentRows


@dataclass(frozen=True, slots=True, eq=False)
class ExpertsInFlight:
    """A step's rows between the stages of a layer."""

    exchange: Exchange
    num_rows: int
    sent: SentRows | None


class MoeLayer(nn.Module):
    """Mixture-of-experts layer; this rank has its share of every expert's intermediate size.

    `forward` is `start`, `run_experts` and `finish`, between which other work finds room. Two steps
    may be in flight at once; they end in the order in which they began.
    """

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        ops: ModelOps,
        *,
        num_experts: int,
        experts_per_token: int,
        routing: Routing,
        share: RankShare,
        glu: GluForm,
        bias: bool,
        device: torch.device,
        dtype: torch.dtype,
        dispatcher: Dispatcher = LOOPBACK,
    ) -> None:
        super().__init__()
        self._dispatcher = dispatcher
        self.router = Router(
            hidden_size,
            num_experts,
            experts_per_token,
            ops,
            routing=routing,
            bias=bias,
            device=device,
            dtype=dtype,
        )
        self.experts = Experts(
            hidden_size,
            num_experts,
            intermediate_size,
            ops,
            share=share,
            glu=glu,
            bias=bias,
            device=device,
            dtype=dtype,
        )

    def forward(self, x_TC: Tensor, sent: SentRows | None = None) -> Tensor:
        """[T, C] in; out comes what this rank adds to the sum over ranks, [T, C].

        `sent`: the rows that this rank sends; None: all, where its experts are its lane's alone.
        """
        in_flight = self.start(x_TC, sent)
        self.run_experts(in_flight)
        return self.finish(in_flight)

    def start(self, x_TC: Tensor, sent: SentRows | None) -> ExpertsInFlight:
        """Choose experts, and start the dispatch."""
        num_rows = x_TC.shape[0]
        if sent is not None:
            x_TC = sent.own(x_TC)

        weights_TK, ids_TK = self.router(x_TC)
        if sent is not None:
            ids_TK = sent.without_padding(ids_TK, num_rows)

        sizes = DispatchSizes((num_rows,)) if sent is None else sent.sizes
        exchange = self._dispatcher.send(x_TC, weights_TK, ids_TK, sizes)
        return ExpertsInFlight(exchange, num_rows, sent)

    def run_experts(self, in_flight: ExpertsInFlight) -> None:
        """Finish the dispatch, compute what has come, and start the combine."""
        received = in_flight.exchange.receive()
        out_NC = self.experts(received.x_NC, received.weights_NK, received.local_ids_NK)
        in_flight.exchange.send_back(out_NC)

    def finish(self, in_flight: ExpertsInFlight) -> Tensor:
        """Finish the combine. Returns what `forward` does."""
        out_TC = in_flight.exchange.combine()
        sent = in_flight.sent
        return out_TC if sent is None else sent.among_lane(out_TC, in_flight.num_rows)

    def weights(self) -> dict[str, WeightPart]:
        """Parts of all tensors that a checkpoint has."""
        return {
            **{f"router.{name}": each for name, each in self.router.weights().items()},
            **{f"experts.{name}": each for name, each in self.experts.weights().items()},
        }
