"""DeepSeek-V2 and V3: latent attention, and many small experts in groups."""

from collections.abc import Mapping
from typing import Any

from raydix.errors import CheckpointError
from raydix.kernels.moe.routing import GroupLimitedRouting, Scoring
from raydix.runtime.model.families.config_fields import (
    make_spec,
    read_glu,
    read_norm,
    require_enough_experts,
)
from raydix.runtime.model.families.definition import FamilyDefinition
from raydix.runtime.model.families.weight_names import DECODER_NAMES
from raydix.runtime.model.spec.rope_spec import REMEDY, Rope, YarnRope, read_rope, yarn_mscale
from raydix.runtime.model.spec.spec import (
    DenseMlpSpec,
    LatentAttentionSpec,
    LayerSpec,
    ModelSpec,
    MoeMlpSpec,
    NormSpec,
)

_INNER_NORM = NormSpec(eps=1e-6)
"""The norm of latents. Configs speak of the other norms alone."""
_SIZES = ("num_experts_per_tok", "n_shared_experts", "first_k_dense_replace", "v_head_dim")
_NAMES: Mapping[str, str] = {
    "layers.{}.attention.q_down": "model.layers.{}.self_attn.q_a_proj",
    "layers.{}.attention.q_norm": "model.layers.{}.self_attn.q_a_layernorm",
    "layers.{}.attention.q_up": "model.layers.{}.self_attn.q_b_proj",
    "layers.{}.attention.latent": "model.layers.{}.self_attn.kv_a_proj_with_mqa",
    "layers.{}.attention.latent_norm": "model.layers.{}.self_attn.kv_a_layernorm",
    "layers.{}.attention.kv_up": "model.layers.{}.self_attn.kv_b_proj",
    "layers.{}.mlp.router": "model.layers.{}.mlp.gate",
    "layers.{}.mlp.experts.{}.gate": "model.layers.{}.mlp.experts.{}.gate_proj",
    "layers.{}.mlp.experts.{}.up": "model.layers.{}.mlp.experts.{}.up_proj",
    "layers.{}.mlp.experts.{}.down": "model.layers.{}.mlp.experts.{}.down_proj",
    "layers.{}.mlp.shared.gate": "model.layers.{}.mlp.shared_experts.gate_proj",
    "layers.{}.mlp.shared.up": "model.layers.{}.mlp.shared_experts.up_proj",
    "layers.{}.mlp.shared.down": "model.layers.{}.mlp.shared_experts.down_proj",
}


def _read_v2(config: Any) -> ModelSpec:
    _require_sizes(config)
    if config.norm_topk_prob:
        raise CheckpointError(
            "norm_topk_prob is true; of DeepSeek-V2 only models without it are supported, as "
            "implementations differ about what it does."
        )
    return _read_spec(
        config,
        _read_attention(config, has_interleaved_pairs=True),
        mlp_bias=bool(config.mlp_bias),
        routing=_read_v2_routing(config),
    )


def _read_v3(config: Any) -> ModelSpec:
    _require_sizes(config)
    _require("scoring_func", getattr(config, "scoring_func", "sigmoid"), "sigmoid")
    _require("topk_method", getattr(config, "topk_method", "noaux_tc"), "noaux_tc")
    routing = GroupLimitedRouting(
        scoring=Scoring.SIGMOID,
        num_groups=config.n_group,
        groups_per_token=config.topk_group,
        scores_per_group=2,
        renormalise=bool(config.norm_topk_prob),
        scale=float(config.routed_scaling_factor),
        has_correction_bias=True,
    )
    return _read_spec(
        config,
        _read_attention(config, has_interleaved_pairs=bool(config.rope_interleave)),
        mlp_bias=False,
        routing=routing,
    )


def _read_v2_routing(config: Any) -> GroupLimitedRouting:
    _require("scoring_func", getattr(config, "scoring_func", "softmax"), "softmax")
    match config.topk_method:
        case "greedy":
            num_groups, groups_per_token = 1, 1
        case "group_limited_greedy":
            num_groups, groups_per_token = config.n_group, config.topk_group
        case other:
            raise CheckpointError(
                f"topk_method is {other!r}; supported are 'greedy' and 'group_limited_greedy'."
            )
    return GroupLimitedRouting(
        scoring=Scoring.SOFTMAX,
        num_groups=num_groups,
        groups_per_token=groups_per_token,
        scores_per_group=1,
        renormalise=False,
        scale=float(config.routed_scaling_factor),
        has_correction_bias=False,
    )


def _read_spec(
    config: Any,
    attention: LatentAttentionSpec,
    *,
    mlp_bias: bool,
    routing: GroupLimitedRouting,
) -> ModelSpec:
    """Dense layers first, then sparse ones."""
    _require("moe_layer_freq", getattr(config, "moe_layer_freq", 1), 1)
    _check_routing(config, routing)
    norm, glu = read_norm(config), read_glu(config.hidden_act)
    dense = DenseMlpSpec(intermediate_size=config.intermediate_size, bias=mlp_bias, glu=glu)
    # Shared experts are as one of them all, side by side.
    shared_size = config.moe_intermediate_size * config.n_shared_experts
    sparse = MoeMlpSpec(
        num_experts=config.n_routed_experts,
        experts_per_token=config.num_experts_per_tok,
        intermediate_size=config.moe_intermediate_size,
        routing=routing,
        shared=DenseMlpSpec(intermediate_size=shared_size, bias=mlp_bias, glu=glu),
        glu=glu,
    )
    layers = tuple(
        LayerSpec(
            attention=attention,
            mlp=dense if layer < config.first_k_dense_replace else sparse,
            norm=norm,
        )
        for layer in range(config.num_hidden_layers)
    )
    return make_spec(config, layers)


def _read_attention(config: Any, *, has_interleaved_pairs: bool) -> LatentAttentionSpec:
    rope = read_rope(config.rope_parameters, config.max_position_embeddings)
    rope_dim = config.qk_rope_head_dim
    _require("partial_rotary_factor", config.rope_parameters.get("partial_rotary_factor", 1.0), 1.0)
    return LatentAttentionSpec(
        num_heads=config.num_attention_heads,
        q_lora_rank=config.q_lora_rank,
        kv_lora_rank=config.kv_lora_rank,
        qk_nope_head_dim=config.qk_nope_head_dim,
        qk_rope_head_dim=rope_dim,
        v_head_dim=config.v_head_dim,
        rope=rope,
        has_interleaved_pairs=has_interleaved_pairs,
        scale=(config.qk_nope_head_dim + rope_dim) ** -0.5 * _temperature(rope),
        bias=bool(config.attention_bias),
        norm=_INNER_NORM,
    )


def _temperature(rope: Rope) -> float:
    """What YaRN multiplies scores by, besides that of its `attention_factor`."""
    if isinstance(rope, YarnRope) and rope.mscale_all_dim:
        return yarn_mscale(rope.factor, rope.mscale_all_dim) ** 2
    return 1.0


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


def _require_sizes(config: Any) -> None:
    """Raise CheckpointError if a size is null that transformers takes so."""
    for name in _SIZES:
        if getattr(config, name) is None:
            raise CheckpointError(f"{name} is null; expected a whole number. {REMEDY}")


def _require(name: str, found: object, expected: object) -> None:
    if found != expected:
        raise CheckpointError(f"{name} is {found!r}; only {expected!r} is supported.")


DEEPSEEK_V2 = FamilyDefinition(
    model_type="deepseek_v2",
    architecture="DeepseekV2ForCausalLM",
    read_spec=_read_v2,
    weight_names={**DECODER_NAMES, **_NAMES},
)
DEEPSEEK_V3 = FamilyDefinition(
    model_type="deepseek_v3",
    architecture="DeepseekV3ForCausalLM",
    read_spec=_read_v3,
    weight_names={**DECODER_NAMES, **_NAMES},
    has_prediction_layers=True,
)
