import torch

from raydix.kernels.moe.routing import GroupLimitedRouting, Scoring
from raydix.kernels.ops import ReferenceOps
from raydix.kernels.reference.experts import group_limited_gating
from raydix.moe.router import Router

ROUTING = GroupLimitedRouting(
    scoring=Scoring.SIGMOID,
    num_groups=2,
    groups_per_token=1,
    scores_per_group=2,
    renormalise=True,
    scale=2.5,
    has_correction_bias=True,
)


def make_router(dtype: torch.dtype) -> Router:
    torch.manual_seed(3)
    router = Router(
        8,
        6,
        2,
        ReferenceOps(),
        routing=ROUTING,
        bias=False,
        device=torch.device("cpu"),
        dtype=dtype,
    )
    for parameter in router.parameters():
        parameter.normal_()
    return router


def test_group_limited_scores_are_not_rounded_to_the_dtype_of_the_model() -> None:
    router, x_TC = make_router(torch.bfloat16), torch.randn(5, 8, dtype=torch.bfloat16)

    weights_TK, expert_ids_TK = router(x_TC)

    logits_TE = x_TC.float() @ router.scores.matrix_OC.float().T
    expected = group_limited_gating(logits_TE, router.correction_bias_E, 2, ROUTING)
    torch.testing.assert_close(weights_TK, expected[0])
    assert torch.equal(expert_ids_TK, expected[1])


def test_the_correction_bias_moves_the_choice() -> None:
    router, x_TC = make_router(torch.float32), torch.randn(5, 8)
    assert router.correction_bias_E is not None
    router.correction_bias_E.zero_()[3:].fill_(10.0)

    _, expert_ids_TK = router(x_TC)

    assert set(expert_ids_TK.flatten().tolist()) <= {3, 4, 5}
    assert set(router.weights()) == {"weight", "e_score_correction_bias"}
