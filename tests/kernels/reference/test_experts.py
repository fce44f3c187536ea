import pytest
import torch

from raydix.kernels.expert_biases import ExpertBiases
from raydix.kernels.glu_form import ClampedGlu, SiluGlu
from raydix.kernels.reference.experts import fused_experts, topk_gating


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def naive_experts(
    x: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    weights: torch.Tensor,
    ids: torch.Tensor,
    biases: ExpertBiases | None = None,
) -> torch.Tensor:
    out = torch.zeros_like(x)
    for t in range(x.shape[0]):
        for weight, expert in zip(weights[t], ids[t], strict=True):
            hidden = gate_up[expert] @ x[t]
            gate, up = (hidden if biases is None else hidden + biases.gate_up_EI[expert]).chunk(2)
            result = down[expert] @ (gate * gate.sigmoid() * up)
            out[t] += weight * (result if biases is None else result + biases.down_EC[expert])
    return out


@pytest.mark.parametrize("num_tokens", [1, 64, 65])
def test_experts_match_the_definition(num_tokens: int) -> None:
    x, gate_up, down = torch.randn(num_tokens, 8), torch.randn(7, 10, 8), torch.randn(7, 8, 5)
    weights, ids = topk_gating(torch.randn(num_tokens, 7), 3, renormalise=False)

    out = fused_experts(x, gate_up, down, weights, ids, SiluGlu(), None)

    torch.testing.assert_close(
        out, naive_experts(x, gate_up, down, weights, ids), atol=1e-4, rtol=1e-4
    )


@pytest.mark.parametrize("num_tokens", [5, 65])
def test_biases_are_added_before_the_activation_and_before_the_weighting(num_tokens: int) -> None:
    x, gate_up, down = torch.randn(num_tokens, 8), torch.randn(7, 10, 8), torch.randn(7, 8, 5)
    biases = ExpertBiases(gate_up_EI=torch.randn(7, 10), down_EC=torch.randn(7, 8))
    weights, ids = topk_gating(torch.randn(num_tokens, 7), 3, renormalise=True)

    out = fused_experts(x, gate_up, down, weights, ids, SiluGlu(), biases)

    expected = naive_experts(x, gate_up, down, weights, ids, biases)
    torch.testing.assert_close(out, expected, atol=1e-4, rtol=1e-4)


def test_clamped_experts_clamp_gate_and_up() -> None:
    x, gate_up, down = torch.ones(1, 1), torch.tensor([[[9.0], [-9.0]]]), torch.ones(1, 1, 1)

    out = fused_experts(
        x,
        gate_up,
        down,
        torch.ones(1, 1),
        torch.zeros(1, 1, dtype=torch.int64),
        ClampedGlu(slope=1.0, limit=3.0),
        None,
    )

    torch.testing.assert_close(out, -2 * 3 * torch.tensor([[3.0]]).sigmoid())


def test_all_tokens_may_choose_one_expert() -> None:
    x, gate_up, down = torch.randn(70, 8), torch.randn(7, 10, 8), torch.randn(7, 8, 5)
    weights, ids = torch.ones(70, 1), torch.full((70, 1), 4)

    out = fused_experts(x, gate_up, down, weights, ids, SiluGlu(), None)

    torch.testing.assert_close(
        out, naive_experts(x, gate_up, down, weights, ids), atol=1e-4, rtol=1e-4
    )


@pytest.mark.parametrize("renormalise", [True, False])
def test_gating_takes_the_most_likely_experts(renormalise: bool) -> None:
    logits = torch.randn(5, 6)
    probabilities = logits.softmax(-1)

    weights, ids = topk_gating(logits, 2, renormalise=renormalise)

    for t in range(5):
        chosen = probabilities[t].argsort(descending=True)[:2]
        assert ids[t].tolist() == chosen.tolist()
        total = probabilities[t, chosen].sum() if renormalise else 1.0
        torch.testing.assert_close(weights[t], probabilities[t, chosen] / total)
