"""Layers whose experts are on other ranks compute what one rank does."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.distributed import FileStore

from raydix.ids import LogicalExpertId
from raydix.kernels.dense.glu_form import SiluGlu
from raydix.kernels.moe.routing import SoftmaxRouting
from raydix.kernels.ops import ReferenceOps
from raydix.kernels.weights.rank_share import RankShare
from raydix.moe.dispatch.gloo import GlooDispatcher
from raydix.moe.dispatch.protocol import DispatchShape, DispatchSizes
from raydix.moe.layer import LayerExperts, MoeLayer, own_experts
from raydix.moe.placement import EMPTY, Placement, initial_placement, routes
from raydix.moe.routes import DeviceRoutes
from raydix.moe.sent_rows import SentRows
from tests.plain_weights import plain_weights

HIDDEN, NUM_EXPERTS, TOP_K = 8, 5, 2
CPU = torch.device("cpu")


def make_layer(experts: LayerExperts) -> MoeLayer:
    layer = MoeLayer(
        HIDDEN,
        6,
        ReferenceOps(),
        num_experts=NUM_EXPERTS,
        experts_per_token=TOP_K,
        routing=SoftmaxRouting(renormalise=True),
        experts=experts,
        glu=SiluGlu(),
        bias=True,
        weights=plain_weights(CPU, torch.float32),
    )
    for number, part in enumerate(layer.weights().values()):
        generator = torch.Generator().manual_seed(number)
        part.fill(torch.randn(part.whole_shape, generator=generator))
    return layer


def on_ranks(
    placement: Placement, file: Path, x_R: list[torch.Tensor], routed: Placement | None = None
) -> list[torch.Tensor]:
    """Each rank's output for its own rows. `routed`: what rows are sent by, if not `placement`."""
    num_ranks, seats = placement.num_ranks, placement.seats_per_rank
    shape = DispatchShape(
        num_ranks=num_ranks,
        seats_per_rank=seats,
        hidden_size=HIDDEN,
        experts_per_token=TOP_K,
        max_tokens=100,
        max_low_latency_tokens=0,
        dtype=torch.float32,
    )
    sizes = DispatchSizes(tuple(len(x) for x in x_R))

    def be_rank(rank: int) -> torch.Tensor:
        held = placement.experts_LP[0, rank * seats : (rank + 1) * seats].tolist()
        own = routes(routed or placement, rank, np.ones((1, NUM_EXPERTS)))
        layer = make_layer(
            LayerExperts(
                held=tuple(None if each == EMPTY else LogicalExpertId(each) for each in held),
                share=RankShare(),
                dispatcher=GlooDispatcher(FileStore(str(file), num_ranks), rank, shape),
                routes=DeviceRoutes(own, CPU).layer(0),
            )
        )
        out: torch.Tensor = layer(
            x_R[rank], SentRows(first=0, num_rows=len(x_R[rank]), sizes=sizes)
        )
        return out

    with ThreadPoolExecutor(num_ranks) as pool:
        return [each.result(60) for each in [pool.submit(be_rank, r) for r in range(num_ranks)]]


@pytest.mark.parametrize("num_rows", [(7, 4), (0, 3), (80, 1), (9, 0, 2)])
@pytest.mark.parametrize(("redundant", "spare"), [(0, 0), (1, 0), (2, 1)])
def test_each_rank_gets_what_one_with_all_experts_computes(
    num_rows: tuple[int, ...], redundant: int, spare: int, tmp_path: Path
) -> None:
    torch.manual_seed(sum(num_rows))
    placement = initial_placement(
        1, NUM_EXPERTS, len(num_rows), redundant_per_rank=redundant, spare_seats=spare
    )
    x_R = [torch.randn(rows, HIDDEN) for rows in num_rows]
    whole = make_layer(own_experts(NUM_EXPERTS, RankShare()))

    outputs = on_ranks(placement, tmp_path / "meeting", x_R)

    for out, x in zip(outputs, x_R, strict=True):
        torch.testing.assert_close(out, whole(x), atol=1e-4, rtol=1e-4)


def test_comparison_fails_if_two_experts_have_each_others_place(tmp_path: Path) -> None:
    """The control of the test above: rank 0's seats hold each other's expert."""
    placement = initial_placement(1, NUM_EXPERTS, 2)
    swapped_LP = placement.experts_LP.copy()
    swapped_LP[0, [0, 1]] = swapped_LP[0, [1, 0]]
    torch.manual_seed(0)
    x = torch.randn(9, HIDDEN)
    whole = make_layer(own_experts(NUM_EXPERTS, RankShare()))
    swapped = Placement(swapped_LP, NUM_EXPERTS, 2)
    [right, _] = on_ranks(swapped, tmp_path / "right", [x, x])
    torch.testing.assert_close(right, whole(x), atol=1e-4, rtol=1e-4)

    [wrong, _] = on_ranks(swapped, tmp_path / "wrong", [x, x], routed=placement)

    assert not torch.allclose(wrong, whole(x), atol=1e-2)
