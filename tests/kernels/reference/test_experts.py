import pytest
import torch

from raydix.kernels.dense.glu_form import ClampedGlu, SiluGlu
from raydix.kernels.moe.expert_biases import ExpertBiases
from raydix.kernels.moe.routing import GroupLimitedRouting, Scoring
from raydix.kernels.reference.experts import fused_experts, group_limited_gating, topk_gating


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
            if expert < 0:
                continue
            hidden = gate_up[expert] @ x[t]
            gate, up = (hidden if biases is None else hidden + biases.gate_up_EI[expert]).chunk(2)
            result = down[expert] @ (gate * gate.sigmoid() * up)
            out[t] += weight * (result if biases is None else result + biases.down_EC[expert])
    return out


@pytest.mark.parametrize("num_tokens", [1, 64, 65])
def test_experts_match_the_definition(num_tokens: int) -> None:
    x, gate_up, down = torch.randn(num_tokens, 8), torch.randn(7, 10, 8), torch.randn(7, 8, 5)
    weights, ids = topk_gating(torch.randn(num_tokens, 7), 3, renormalise=False)

    out = fused_experts(x, gate_up, down, weights, ids, form=SiluGlu(), biases=None)

    torch.testing.assert_close(
        out, naive_experts(x, gate_up, down, weights, ids), atol=1e-4, rtol=1e-4
    )


@pytest.mark.parametrize("num_tokens", [5, 65])
def test_biases_are_added_before_the_activation_and_before_the_weighting(num_tokens: int) -> None:
    x, gate_up, down = torch.randn(num_tokens, 8), torch.randn(7, 10, 8), torch.randn(7, 8, 5)
    biases = ExpertBiases(gate_up_EI=torch.randn(7, 10), down_EC=torch.randn(7, 8))
    weights, ids = topk_gating(torch.randn(num_tokens, 7), 3, renormalise=True)

    out = fused_experts(x, gate_up, down, weights, ids, form=SiluGlu(), biases=biases)

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
        form=ClampedGlu(slope=1.0, limit=3.0),
        biases=None,
    )

    torch.testing.assert_close(out, -2 * 3 * torch.tensor([[3.0]]).sigmoid())


def test_all_tokens_may_choose_one_expert() -> None:
    x, gate_up, down = torch.randn(70, 8), torch.randn(7, 10, 8), torch.randn(7, 8, 5)
    weights, ids = torch.ones(70, 1), torch.full((70, 1), 4)

    out = fused_experts(x, gate_up, down, weights, ids, form=SiluGlu(), biases=None)

    torch.testing.assert_close(
        out, naive_experts(x, gate_up, down, weights, ids), atol=1e-4, rtol=1e-4
    )


@pytest.mark.parametrize("num_tokens", [1, 64, 65])
@pytest.mark.parametrize("fraction_without", [0.5, 1.0])
def test_an_id_of_minus_one_chooses_no_expert(num_tokens: int, fraction_without: float) -> None:
    x, gate_up, down = torch.randn(num_tokens, 8), torch.randn(7, 10, 8), torch.randn(7, 8, 5)
    weights, ids = topk_gating(torch.randn(num_tokens, 7), 3, renormalise=False)
    ids = ids.masked_fill(torch.rand(ids.shape) < fraction_without, -1)

    out = fused_experts(x, gate_up, down, weights, ids.int(), form=SiluGlu(), biases=None)

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


def naive_group_limited(
    scores: list[float], bias: list[float], num_choices: int, routing: GroupLimitedRouting
) -> dict[int, float]:
    """The weights of one token's experts, before they are scaled."""
    size = len(scores) // routing.num_groups
    choosing = [score + each for score, each in zip(scores, bias, strict=True)]

    def goodness(group: int) -> float:
        own = sorted(choosing[group * size : (group + 1) * size], reverse=True)
        return sum(own[: routing.scores_per_group])

    groups = sorted(range(routing.num_groups), key=goodness, reverse=True)
    allowed = [
        group * size + expert
        for group in groups[: routing.groups_per_token]
        for expert in range(size)
    ]
    chosen = sorted(allowed, key=lambda expert: choosing[expert], reverse=True)[:num_choices]
    total = sum(scores[expert] for expert in chosen) if routing.renormalise else 1.0
    return {expert: scores[expert] / total for expert in chosen}


@pytest.mark.parametrize("scoring", list(Scoring))
@pytest.mark.parametrize(
    ("num_groups", "groups_per_token", "scores_per_group"), [(1, 1, 1), (4, 2, 1), (4, 2, 2)]
)
@pytest.mark.parametrize("renormalise", [True, False])
@pytest.mark.parametrize("has_correction_bias", [True, False])
def test_group_limited_gating_matches_the_definition(
    scoring: Scoring,
    num_groups: int,
    groups_per_token: int,
    scores_per_group: int,
    renormalise: bool,
    has_correction_bias: bool,
) -> None:
    routing = GroupLimitedRouting(
        scoring=scoring,
        num_groups=num_groups,
        groups_per_token=groups_per_token,
        scores_per_group=scores_per_group,
        renormalise=renormalise,
        scale=2.5,
        has_correction_bias=has_correction_bias,
    )
    logits, bias = torch.randn(40, 12), torch.randn(12)
    scores = logits.softmax(-1) if scoring is Scoring.SOFTMAX else logits.sigmoid()

    weights, ids = group_limited_gating(logits, bias if has_correction_bias else None, 3, routing)

    for t in range(40):
        expected = naive_group_limited(
            scores[t].tolist(), bias.tolist() if has_correction_bias else [0.0] * 12, 3, routing
        )
        found = dict(zip(ids[t].tolist(), weights[t].tolist(), strict=True))
        assert found == pytest.approx({e: 2.5 * weight for e, weight in expected.items()})


def test_groups_and_their_limit_change_the_choice() -> None:
    """The control of the test above: the best expert of all may be in a group left out."""
    routing = GroupLimitedRouting(
        scoring=Scoring.SIGMOID,
        num_groups=2,
        groups_per_token=1,
        scores_per_group=2,
        renormalise=False,
        scale=1.0,
        has_correction_bias=False,
    )

    _, ids = group_limited_gating(torch.tensor([[4.0, -9.0, 2.0, 2.0]]), None, 2, routing)

    assert sorted(ids[0].tolist()) == [2, 3]
