"""Plain PyTorch twins of the choice of experts, and of the experts.

Legend: T tokens of the step, C hidden, I intermediate, E experts, G groups of experts, K experts
per token, X choices of all tokens. float32 stays IEEE float32: TF32 must be off, as it is by
default.
"""

from typing import assert_never

import torch
from torch import Tensor
from torch.nn import functional

from raydix.kernels.dense.glu_form import GluForm
from raydix.kernels.moe.expert_biases import ExpertBiases
from raydix.kernels.moe.routing import GroupLimitedRouting, Scoring
from raydix.kernels.reference.activation import glu

DENSE_EXPERT_TOKENS = 64
"""The most tokens for which every expert runs on every token: no count has to reach the host."""


def topk_gating(
    router_logits_TE: Tensor, num_experts_per_token: int, *, renormalise: bool
) -> tuple[Tensor, Tensor]:
    """Choose each token's most likely experts.

    Returns (weights_TK float32, expert_ids_TK int64): softmax over all experts in float32, then the
    K largest, divided by their sum if `renormalise`.
    """
    weights_TK, expert_ids_TK = (
        router_logits_TE.float().softmax(-1).topk(num_experts_per_token, dim=-1)
    )
    if renormalise:
        weights_TK = weights_TK / weights_TK.sum(-1, keepdim=True)
    return weights_TK, expert_ids_TK


def group_limited_gating(
    router_logits_TE: Tensor,
    correction_bias_E: Tensor | None,
    num_experts_per_token: int,
    routing: GroupLimitedRouting,
) -> tuple[Tensor, Tensor]:
    """Choose each token's best experts among those of its best groups.

    Returns (weights_TK float32, expert_ids_TK int64). A token's groups have at least K experts.
    Nothing here waits for the device.
    """
    scores_TE = _scores(router_logits_TE.float(), routing.scoring)
    # The bias evens out the load of experts; what they add to the output goes by the score alone.
    choosing_TE = scores_TE if correction_bias_E is None else scores_TE + correction_bias_E

    # Many models have one group, and a step of few tokens is as slow as its kernels are many.
    if routing.groups_per_token < routing.num_groups:
        choosing_TE = _of_best_groups(choosing_TE, routing)

    expert_ids_TK = choosing_TE.topk(num_experts_per_token, dim=-1).indices
    weights_TK = scores_TE.gather(1, expert_ids_TK)
    if routing.renormalise:
        # Sigmoids may all be zero.
        weights_TK = weights_TK / (weights_TK.sum(-1, keepdim=True) + 1e-20)
    return weights_TK * routing.scale, expert_ids_TK


def _of_best_groups(choosing_TE: Tensor, routing: GroupLimitedRouting) -> Tensor:
    """The same in each token's best groups; -inf in the others."""
    choosing_TGX = choosing_TE.unflatten(1, (routing.num_groups, -1))
    group_scores_TG = choosing_TGX.topk(routing.scores_per_group, dim=-1).values.sum(-1)
    groups_TX = group_scores_TG.topk(routing.groups_per_token, dim=-1).indices
    is_out_TG = torch.ones_like(group_scores_TG, dtype=torch.bool).scatter_(1, groups_TX, False)
    return choosing_TGX.masked_fill(is_out_TG[..., None], float("-inf")).flatten(1)


def _scores(logits_TE: Tensor, scoring: Scoring) -> Tensor:
    match scoring:
        case Scoring.SOFTMAX:
            return logits_TE.softmax(-1)
        case Scoring.SIGMOID:
            return logits_TE.sigmoid()
        case _:
            assert_never(scoring)


def fused_experts(
    x_TC: Tensor,
    gate_up_EIC: Tensor,
    down_ECI: Tensor,
    weights_TK: Tensor,
    expert_ids_TK: Tensor,
    *,
    form: GluForm,
    biases: ExpertBiases | None,
) -> Tensor:
    """Weighted sum of the chosen experts' outputs, [T, C]; an id of -1 chooses none.

    gate_up_EIC holds gate rows, then up rows. Past DENSE_EXPERT_TOKENS tokens the host waits for
    the device.
    """
    if x_TC.shape[0] <= DENSE_EXPERT_TOKENS:
        return _dense_experts(
            x_TC, gate_up_EIC, down_ECI, weights_TK, expert_ids_TK, form=form, biases=biases
        )

    num_experts, experts_per_token = gate_up_EIC.shape[0], expert_ids_TK.shape[1]
    order_X = expert_ids_TK.flatten().argsort(stable=True)
    tokens_X = order_X // experts_per_token
    num_without, *counts = torch.bincount(
        expert_ids_TK.flatten() + 1, minlength=num_experts + 1
    ).tolist()
    outputs = [x_TC.new_zeros(num_without, x_TC.shape[1])]
    for expert, part_XC in enumerate(x_TC[tokens_X[num_without:]].split(counts)):
        if counts[expert]:
            gate_up_I, down_C = (
                (None, None)
                if biases is None
                else (biases.gate_up_EI[expert], biases.down_EC[expert])
            )
            hidden_XI = glu(functional.linear(part_XC, gate_up_EIC[expert], gate_up_I), form)
            outputs.append(functional.linear(hidden_XI, down_ECI[expert], down_C))

    weighted_XC = torch.cat(outputs) * weights_TK.flatten()[order_X, None].to(x_TC.dtype)
    by_choice_TKC = torch.empty_like(weighted_XC).index_copy_(0, order_X, weighted_XC)
    return by_choice_TKC.view(-1, experts_per_token, x_TC.shape[1]).sum(1)


def _dense_experts(
    x_TC: Tensor,
    gate_up_EIC: Tensor,
    down_ECI: Tensor,
    weights_TK: Tensor,
    expert_ids_TK: Tensor,
    *,
    form: GluForm,
    biases: ExpertBiases | None,
) -> Tensor:
    num_experts, num_tokens = gate_up_EIC.shape[0], x_TC.shape[0]
    gate_up_ETI = x_TC.expand(num_experts, -1, -1) @ gate_up_EIC.transpose(1, 2)
    if biases is not None:
        gate_up_ETI += biases.gate_up_EI[:, None]
    out_ETC = glu(gate_up_ETI, form) @ down_ECI.transpose(1, 2)
    if biases is not None:
        out_ETC += biases.down_EC[:, None]

    # A choice of none adds zero to some expert's weight.
    weights_TE = weights_TK.new_zeros(num_tokens, num_experts).scatter_add_(
        1, expert_ids_TK.long().clamp(min=0), weights_TK.masked_fill(expert_ids_TK < 0, 0.0)
    )
    return (weights_TE.to(x_TC.dtype)[:, None] @ out_ETC.transpose(0, 1))[:, 0]
