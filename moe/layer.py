"""The sparse feed-forward layer: a router and its experts.

Legend: T rows of the lane's step, C hidden.
"""

from dataclasses import dataclass

from torch import Tensor, nn

from raydix.ids import LogicalExpertId
from raydix.kernels.dense.glu_form import GluForm
from raydix.kernels.moe.routing import Routing
from raydix.kernels.ops import ModelOps
from raydix.kernels.weights.linear_weight import WeightMaker
from raydix.kernels.weights.rank_share import RankShare
from raydix.kernels.weights.weight_part import WeightPart, prefixed
from raydix.moe.bank import ExpertBank
from raydix.moe.dispatch.loopback import LOOPBACK
from raydix.moe.dispatch.protocol import Dispatcher, DispatchSizes, Exchange
from raydix.moe.dispatch.streamed import StreamedExchange
from raydix.moe.router import Router
from raydix.moe.routes import LayerRoutes
from raydix.moe.sent_rows import SentRows


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerExperts:
    """Which experts of a layer a rank has, and how its rows reach all of them."""

    held: tuple[LogicalExpertId | None, ...]
    """The expert in each seat of this rank; None: the seat is empty."""
    share: RankShare
    """The share of each of these experts that the rank holds."""
    dispatcher: Dispatcher = LOOPBACK
    routes: LayerRoutes | None = None
    """The tables by which rows find experts; None: expert i is in seat i."""


def own_experts(num_experts: int, share: RankShare) -> LayerExperts:
    """All experts, for a lane that has them to itself."""
    return LayerExperts(held=tuple(map(LogicalExpertId, range(num_experts))), share=share)


class ExpertsInFlight:
    """A step's rows between the stages of a layer, each of which is called once."""

    def __init__(
        self, experts: ExpertBank, exchange: Exchange, num_rows: int, sent: SentRows | None
    ) -> None:
        self._experts = experts
        self._exchange = exchange
        self._num_rows = num_rows
        self._sent = sent

    def run_experts(self) -> None:
        """Finish the dispatch, compute what has come, and start the combine."""
        received = self._exchange.receive()
        out_NC = self._experts(received.x_NC, received.weights_NK, received.local_ids_NK)
        self._exchange.send_back(out_NC)

    def finish(self) -> Tensor:
        """Finish the combine. Returns what `MoeLayer.forward` does."""
        out_TC = self._exchange.combine()
        sent = self._sent
        return out_TC if sent is None else sent.among_lane(out_TC, self._num_rows)


class MoeLayer(nn.Module):
    """Mixture-of-experts layer.

    `forward` is `start` and the two stages of what that returns, between which other work finds
    room. Two batches may be in flight at once; they end in the order in which they began.
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
        experts: LayerExperts,
        glu: GluForm,
        bias: bool,
        weights: WeightMaker,
    ) -> None:
        super().__init__()
        self._ops = ops
        self._dispatcher = experts.dispatcher
        self._routes = experts.routes
        self.router = Router(
            hidden_size,
            num_experts,
            experts_per_token,
            ops,
            routing=routing,
            bias=bias,
            device=weights.device,
            dtype=weights.dtype,
        )
        self.experts = ExpertBank(
            hidden_size,
            intermediate_size,
            ops,
            num_experts=num_experts,
            held=experts.held,
            share=experts.share,
            glu=glu,
            bias=bias,
            weights=weights.within("experts"),
        )

    def forward(self, x_TC: Tensor, sent: SentRows | None = None) -> Tensor:
        """[T, C] in; out comes what this rank adds to the sum over ranks, [T, C].

        `sent`: the rows that this rank sends; None: all, where its experts are its lane's alone.
        """
        in_flight = self.start(x_TC, sent)
        in_flight.run_experts()
        return in_flight.finish()

    def start(
        self, x_TC: Tensor, sent: SentRows | None, *, scored_TC: Tensor | None = None
    ) -> ExpertsInFlight:
        """Choose experts, and start the dispatch.

        `scored_TC`: what the router reads, if it is not what experts read.
        """
        num_rows = x_TC.shape[0]
        scored_TC = x_TC if scored_TC is None else scored_TC
        if sent is not None:
            x_TC, scored_TC = sent.own(x_TC), sent.own(scored_TC)

        weights_TK, ids_TK = self.router(scored_TC)
        # Before the routes, which count rows: padding asks for nothing.
        if sent is not None:
            ids_TK = sent.without_padding(ids_TK, num_rows)
        if self._routes is not None:
            ids_TK = self._routes.physical_ids(ids_TK, self._ops)

        return ExpertsInFlight(
            self.experts, self._send(x_TC, weights_TK, ids_TK, sent), num_rows, sent
        )

    def weights(self) -> dict[str, WeightPart]:
        """Parts of all tensors that a checkpoint has."""
        return {
            **prefixed("router", self.router.weights()),
            **prefixed("experts", self.experts.weights()),
        }

    def _send(
        self, x_TC: Tensor, weights_TK: Tensor, ids_TK: Tensor, sent: SentRows | None
    ) -> Exchange:
        if sent is None:
            sizes = DispatchSizes((x_TC.shape[0],))
            return self._dispatcher.send(x_TC, weights_TK, ids_TK, sizes)
        if sent.stream is None:
            return self._dispatcher.send(x_TC, weights_TK, ids_TK, sent.sizes)
        return StreamedExchange(
            self._dispatcher,
            sent.stream,
            x_TC=x_TC,
            weights_TK=weights_TK,
            physical_ids_TK=ids_TK,
            sizes=sent.sizes,
        )
