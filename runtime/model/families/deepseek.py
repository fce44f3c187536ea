"""DeepSeek-V2 and V3, and Kimi-K2: latent attention, and many small experts in groups."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from raydix.errors import CheckpointError
from raydix.kernels.moe.routing import GroupLimitedRouting, Scoring
from raydix.runtime.model.families.config_fields import make_spec, read_norm, require_value
from raydix.runtime.model.families.definition import FamilyDefinition
from raydix.runtime.model.families.many_experts import (
    read_corrected_routing,
    read_dense_then_sparse,
    require_sizes,
)
from raydix.runtime.model.families.weight_names import (
    DECODER_NAMES,
    EXPERT_NAMES,
    SHARED_EXPERTS_NAMES,
)
from raydix.runtime.model.spec.rope_spec import Rope, YarnRope, read_rope, yarn_mscale
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
_SIZES = ("v_head_dim",)
_NAMES: Mapping[str, str] = {
    "layers.{}.attention.q_down": "model.layers.{}.self_attn.q_a_proj",
    "layers.{}.attention.q_norm": "model.layers.{}.self_attn.q_a_layernorm",
    "layers.{}.attention.q_up": "model.layers.{}.self_attn.q_b_proj",
    "layers.{}.attention.latent": "model.layers.{}.self_attn.kv_a_proj_with_mqa",
    "layers.{}.attention.latent_norm": "model.layers.{}.self_attn.kv_a_layernorm",
    "layers.{}.attention.kv_up": "model.layers.{}.self_attn.kv_b_proj",
}


def _read_v2(config: Any) -> ModelSpec:
    require_sizes(config, _SIZES)
    if config.norm_topk_prob:
        raise CheckpointError(
            "norm_topk_prob is true; of DeepSeek-V2 only models without it are supported, as "
            "implementations differ about what it does."
        )
    attention = _read_attention(config, has_interleaved_pairs=True)
    routing = _read_v2_routing(config)
    mlps = read_dense_then_sparse(config, routing, bias=bool(config.mlp_bias))
    return _make_spec(config, attention, mlps)


def _read_v3(config: Any) -> ModelSpec:
    require_sizes(config, _SIZES)
    attention = _read_attention(config, has_interleaved_pairs=bool(config.rope_interleave))
    mlps = read_dense_then_sparse(config, read_corrected_routing(config), bias=False)
    return _make_spec(config, attention, mlps)


def _read_v2_routing(config: Any) -> GroupLimitedRouting:
    require_value("scoring_func", getattr(config, "scoring_func", "softmax"), "softmax")
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


def _make_spec(
    config: Any, attention: LatentAttentionSpec, mlps: Sequence[DenseMlpSpec | MoeMlpSpec]
) -> ModelSpec:
    norm = read_norm(config)
    layers = tuple(LayerSpec(attention=attention, mlp=mlp, norm=norm) for mlp in mlps)
    return make_spec(config, layers)


def _read_attention(config: Any, *, has_interleaved_pairs: bool) -> LatentAttentionSpec:
    parameters = config.rope_parameters
    rope = read_rope(parameters, config.max_position_embeddings)
    rope_dim = config.qk_rope_head_dim
    _require_known_temperature(parameters)
    require_value("partial_rotary_factor", parameters.get("partial_rotary_factor", 1.0), 1.0)
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


def _require_known_temperature(parameters: Mapping[str, Any]) -> None:
    """Raise CheckpointError if scores have a temperature without YaRN: implementations differ."""
    rope_type, weight = parameters.get("rope_type", "default"), parameters.get("mscale_all_dim")
    if weight and rope_type not in ("default", "yarn"):
        raise CheckpointError(
            f"mscale_all_dim is {weight!r} of a rotary embedding of type {rope_type!r}; it is "
            "supported with 'yarn' alone. Serve another model."
        )


def _temperature(rope: Rope) -> float:
    """What YaRN multiplies scores by, besides that of its `attention_factor`."""
    if isinstance(rope, YarnRope) and rope.mscale_all_dim:
        return yarn_mscale(rope.factor, rope.mscale_all_dim) ** 2
    return 1.0


DEEPSEEK_V2 = FamilyDefinition(
    model_type="deepseek_v2",
    architecture="DeepseekV2ForCausalLM",
    read_spec=_read_v2,
    weight_names={**DECODER_NAMES, **EXPERT_NAMES, **SHARED_EXPERTS_NAMES, **_NAMES},
)
DEEPSEEK_V3 = FamilyDefinition(
    model_type="deepseek_v3",
    architecture="DeepseekV3ForCausalLM",
    read_spec=_read_v3,
    weight_names={**DECODER_NAMES, **EXPERT_NAMES, **SHARED_EXPERTS_NAMES, **_NAMES},
    has_prediction_layers=True,
)
KIMI_K2 = replace(DEEPSEEK_V3, model_type="kimi_k2", config_type="deepseek_v3")
"""DeepSeek-V3 by another name, which transformers does not know."""
KIMI_K25 = replace(
    DEEPSEEK_V3,
    model_type="kimi_k25",
    architecture="KimiK25ForConditionalGeneration",
    other_architectures=("Kimi_K25ForConditionalGeneration",),
    text_section="text_config",
)
"""Its language model alone, which is a Kimi-K2: what only images need is left in the checkpoint."""
