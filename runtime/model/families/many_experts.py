"""Many small experts, as DeepSeek has them and families after it: chosen in groups, some shared."""

from collections.abc import Sequence
from typing import Any

from raydix.errors import CheckpointError
from raydix.kernels.moe.routing import GroupLimitedRouting, Scoring
from raydix.runtime.model.families.config_fields import (
    read_glu,
    require_enough_experts,
    require_value,
)
from raydix.runtime.model.spec.rope_spec import REMEDY
from raydix.runtime.model.spec.spec import DenseMlpSpec, MoeMlpSpec

_SIZES = ("n_shared_experts", "first_k_dense_replace")


def read_corrected_routing(config: Any) -> GroupLimitedRouting:
    """The routing of DeepSeek-V3: by sigmoids, which a bias corrects where it chooses."""
    require_value("scoring_func", getattr(config, "scoring_func", "sigmoid"), "sigmoid")
    require_value("topk_method", getattr(config, "topk_method", "noaux_tc"), "noaux_tc")
    return GroupLimitedRouting(
        scoring=Scoring.SIGMOID,
        num_groups=config.n_group,
        groups_per_token=config.topk_group,
        scores_per_group=2,
        renormalise=bool(config.norm_topk_prob),
        scale=float(config.routed_scaling_factor),
        has_correction_bias=True,
    )


def read_dense_then_sparse(
    config: Any, routing: GroupLimitedRouting, *, bias: bool
) -> Sequence[DenseMlpSpec | MoeMlpSpec]:
    """The feed-forward of each layer: dense ones first. `bias`: of those that are no experts."""
    require_sizes(config, _SIZES)
    require_value("moe_layer_freq", getattr(config, "moe_layer_freq", 1), 1)
    glu = read_glu(config.hidden_act)
    dense = DenseMlpSpec(intermediate_size=config.intermediate_size, bias=bias, glu=glu)

    # Shared experts are as one of them all, side by side.
    shared_size = config.moe_intermediate_size * config.n_shared_experts
    shared = DenseMlpSpec(intermediate_size=shared_size, bias=bias, glu=glu)
    sparse = read_experts(config, routing, shared)
    num_dense = config.first_k_dense_replace
    return [dense if i < num_dense else sparse for i in range(config.num_hidden_layers)]


def read_experts(
    config: Any, routing: GroupLimitedRouting, shared: DenseMlpSpec | None
) -> MoeMlpSpec:
    """The feed-forward of a layer with experts."""
    require_sizes(config, ("num_experts_per_tok",))
    _check_routing(config, routing)
    return MoeMlpSpec(
        num_experts=config.n_routed_experts,
        experts_per_token=config.num_experts_per_tok,
        intermediate_size=config.moe_intermediate_size,
        routing=routing,
        shared=shared,
        glu=read_glu(config.hidden_act),
    )


def require_sizes(config: Any, names: Sequence[str]) -> None:
    """Raise CheckpointError if a size is null that transformers takes so."""
    for name in names:
        if getattr(config, name) is None:
            raise CheckpointError(f"{name} is null; expected a whole number. {REMEDY}")


def _check_routing(config: Any, routing: GroupLimitedRouting) -> None:
    """Raise CheckpointError if groups are not whole, or too small for what is chosen of them."""
    num_experts, num_groups = config.n_routed_experts, routing.num_groups
    if not num_groups or not routing.groups_per_token or num_experts % num_groups:
        raise CheckpointError(
            f"n_routed_experts is {num_experts}, n_group {num_groups}, topk_group "
            f"{routing.groups_per_token}; expected groups of as many experts each. {REMEDY}"
        )

    group_size = num_experts // num_groups
    if routing.groups_per_token > num_groups or routing.scores_per_group > group_size:
        raise CheckpointError(
            f"topk_group is {routing.groups_per_token} of {num_groups} groups of {group_size} "
            f"experts; expected at most all groups, of at least {routing.scores_per_group} "
            f"experts. {REMEDY}"
        )
    require_enough_experts(config.num_experts_per_tok, group_size * routing.groups_per_token)
