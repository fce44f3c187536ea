import torch

from raydix.kernels.dense.glu_form import SiluGlu
from raydix.kernels.moe.routing import SoftmaxRouting
from raydix.kernels.ops import ReferenceOps
from raydix.kernels.weights.rank_share import RankShare
from raydix.moe.layer import MoeLayer, own_experts
from tests.plain_weights import plain_weights


def test_layer_sums_the_experts_that_its_router_chose() -> None:
    torch.manual_seed(1)
    layer = MoeLayer(
        8,
        5,
        ReferenceOps(),
        num_experts=4,
        experts_per_token=2,
        routing=SoftmaxRouting(renormalise=True),
        experts=own_experts(4, RankShare()),
        glu=SiluGlu(),
        bias=False,
        weights=plain_weights(torch.device("cpu"), torch.float32),
    )
    for parameter in layer.parameters():
        parameter.normal_()
    x = torch.randn(3, 8)

    out = layer(x)

    for t in range(3):
        probabilities = (layer.router.scores.matrix_OC @ x[t]).softmax(-1)
        weights, ids = probabilities.topk(2)
        expected = torch.zeros(8)
        for weight, expert in zip(weights / weights.sum(), ids, strict=True):
            gate, up = (layer.experts.gate_up.matrix_OC[expert] @ x[t]).chunk(2)
            expected += weight * (
                layer.experts.down.matrix_OC[expert] @ (torch.nn.functional.silu(gate) * up)
            )
        torch.testing.assert_close(out[t], expected, atol=1e-4, rtol=1e-4)
