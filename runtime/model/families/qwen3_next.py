"""Qwen3-Next, and Qwen3.5 and 3.6 after it: most layers keep a state by the gated delta rule.

In every fourth layer attention sees everything, and its output is gated. Layers that guess tokens
ahead are not loaded, nor is what only images need.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from raydix.errors import CheckpointError
from raydix.kernels.state.delta_form import DeltaForm
from raydix.runtime.model.families.config_fields import (
    make_spec,
    read_mlp,
    read_norm,
    read_partly_rotated_attention,
    require_value,
)
from raydix.runtime.model.families.definition import FamilyDefinition
from raydix.runtime.model.families.fused_rows import FusedRows
from raydix.runtime.model.families.qwen2_moe import read_mlp_beside_shared
from raydix.runtime.model.families.weight_names import (
    DECODER_NAMES,
    EXPERT_NAMES,
    QK_NORM_NAMES,
    SHARED_EXPERT_NAMES,
)
from raydix.runtime.model.formats.restoring import Tensors, take_experts_apart
from raydix.runtime.model.spec.rope_spec import REMEDY
from raydix.runtime.model.spec.spec import (
    AttentionSpec,
    DenseMlpSpec,
    GatedDeltaSpec,
    LayerSpec,
    Mixer,
    ModelSpec,
    MoeMlpSpec,
    NormSpec,
)

_ATTENTION, _DELTA = "model.layers.{}.self_attn", "model.layers.{}.linear_attn"
_STATE_NAMES: Mapping[str, str] = {
    "layers.{}.attention.q": f"{_ATTENTION}.q_proj.query",
    "layers.{}.attention.gate": f"{_ATTENTION}.q_proj.gate",
    "layers.{}.attention.delta": _DELTA,
    "layers.{}.attention.delta.q": f"{_DELTA}.q_proj",
    "layers.{}.attention.delta.k": f"{_DELTA}.k_proj",
    "layers.{}.attention.delta.v": f"{_DELTA}.v_proj",
    "layers.{}.attention.delta.gate": f"{_DELTA}.in_proj_z",
    "layers.{}.attention.delta.beta": f"{_DELTA}.in_proj_b",
    "layers.{}.attention.delta.decay": f"{_DELTA}.in_proj_a",
    "layers.{}.attention.delta.q_taps": f"{_DELTA}.conv1d.q",
    "layers.{}.attention.delta.k_taps": f"{_DELTA}.conv1d.k",
    "layers.{}.attention.delta.v_taps": f"{_DELTA}.conv1d.v",
    "layers.{}.attention.delta.norm": f"{_DELTA}.norm",
    "layers.{}.attention.delta.output": f"{_DELTA}.out_proj",
}
"""Tensors that hold several weights have names of their own, see `_fused_of_layers`."""
_NAMES: Mapping[str, str] = {**DECODER_NAMES, **QK_NORM_NAMES, **_STATE_NAMES}
_MOE_NAMES: Mapping[str, str] = {**_NAMES, **EXPERT_NAMES, **SHARED_EXPERT_NAMES}

_Fused = Iterator[tuple[str, FusedRows]]
"""Tensors that hold several weights, by name."""


def _read_dense(config: Any) -> ModelSpec:
    return _read_spec(config, [read_mlp(config, bias=False)] * config.num_hidden_layers)


def _read_moe(config: Any) -> ModelSpec:
    mlps = [read_mlp_beside_shared(config, layer) for layer in range(config.num_hidden_layers)]
    return _read_spec(config, mlps)


def _read_spec(config: Any, mlps: list[DenseMlpSpec | MoeMlpSpec]) -> ModelSpec:
    require_value("hidden_act", config.hidden_act, "silu")
    _require_silu_gates(config)
    norm = replace(read_norm(config), is_offset=True, is_float32=True)
    mixers: Mapping[str, Mixer] = {
        "full_attention": _read_attention(config, norm),
        "linear_attention": _delta(config),
    }
    types = config.layer_types
    if len(types) != config.num_hidden_layers or not set(types) <= mixers.keys():
        raise CheckpointError(
            f"layer_types is {types}; expected one of {sorted(mixers)} for each of the "
            f"{config.num_hidden_layers} layers. {REMEDY}"
        )
    layers = [
        LayerSpec(attention=mixers[each], mlp=mlp, norm=norm)
        for each, mlp in zip(types, mlps, strict=True)
    ]
    return replace(make_spec(config, tuple(layers)), final_norm=norm)


def _require_silu_gates(config: Any) -> None:
    """Raise CheckpointError if what states say goes through another gate, if config.json tells."""
    found = getattr(config, "output_gate_type", None)
    if found not in (None, "silu", "swish"):
        raise CheckpointError(
            f"output_gate_type is {found!r}; only 'silu', also called 'swish', is supported. "
            "Serve another model."
        )


def _read_attention(config: Any, norm: NormSpec) -> AttentionSpec:
    bias = bool(config.attention_bias)
    attention = read_partly_rotated_attention(config, qkv_bias=bias, output_bias=bias, qk_norm=norm)
    return replace(attention, has_gate=True)


def _delta(config: Any) -> GatedDeltaSpec:
    num_keys, num_values = config.linear_num_key_heads, config.linear_num_value_heads
    if num_values % num_keys:
        raise CheckpointError(
            f"linear_num_value_heads is {num_values}, linear_num_key_heads {num_keys}; expected a "
            f"multiple. {REMEDY}"
        )
    return GatedDeltaSpec(
        form=DeltaForm(
            num_key_heads=num_keys,
            values_per_key=num_values // num_keys,
            key_dim=config.linear_key_head_dim,
            value_dim=config.linear_value_head_dim,
            num_taps=config.linear_conv_kernel_dim,
        ),
        norm=read_norm(config),
    )


def _fused_next(spec: ModelSpec) -> Mapping[str, FusedRows]:
    return dict(_fused_of_layers(spec, _inputs_by_key_head))


def _fused_3_5(spec: ModelSpec) -> Mapping[str, FusedRows]:
    return dict(_fused_of_layers(spec, _inputs_together))


def _fused_of_layers(spec: ModelSpec, of_inputs: Callable[[str, DeltaForm], _Fused]) -> _Fused:
    for index, layer in enumerate(spec.layers):
        match layer.attention:
            case AttentionSpec(num_heads=num_heads):
                name = f"{_ATTENTION.format(index)}.q_proj"
                for kind in ("weight", "bias"):
                    parts = (f"{name}.query.{kind}", f"{name}.gate.{kind}")
                    yield f"{name}.{kind}", FusedRows(parts, num_heads)
            case GatedDeltaSpec(form=form):
                name = _DELTA.format(index)
                taps = tuple([f"{name}.conv1d.{each}.weight" for each in "qkv"])
                yield f"{name}.conv1d.weight", FusedRows(taps)
                yield from of_inputs(name, form)


def _inputs_by_key_head(name: str, form: DeltaForm) -> _Fused:
    """Qwen3-Next stores all of a key head together."""
    num_heads, inputs = form.num_key_heads, _inputs(name)
    yield f"{name}.in_proj_qkvz.weight", FusedRows((*inputs, f"{name}.in_proj_z.weight"), num_heads)
    rates = (f"{name}.in_proj_b.weight", f"{name}.in_proj_a.weight")
    yield f"{name}.in_proj_ba.weight", FusedRows(rates, num_heads)


def _inputs_together(name: str, form: DeltaForm) -> _Fused:
    """Qwen3.5 stores queries, keys and values of all heads one behind another."""
    yield f"{name}.in_proj_qkv.weight", FusedRows(_inputs(name))


def _inputs(name: str) -> tuple[str, ...]:
    return tuple([f"{name}.{each}_proj.weight" for each in "qkv"])


def _restore(tensors: Tensors, spec: ModelSpec) -> Tensors:
    """Norms are stored less one, but for those of states; experts may be stored as one tensor."""
    for name, tensor in take_experts_apart(tensors):
        is_offset = name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight")
        yield name, tensor.float() + 1.0 if is_offset else tensor


QWEN3_NEXT = FamilyDefinition(
    model_type="qwen3_next",
    architecture="Qwen3NextForCausalLM",
    read_spec=_read_moe,
    weight_names=_MOE_NAMES,
    restore=_restore,
    fused=_fused_next,
)
QWEN3_5_TEXT = FamilyDefinition(
    model_type="qwen3_5_text",
    architecture="Qwen3_5ForCausalLM",
    read_spec=_read_dense,
    weight_names=_NAMES,
    restore=_restore,
    fused=_fused_3_5,
)
QWEN3_5 = replace(
    QWEN3_5_TEXT,
    model_type="qwen3_5",
    architecture="Qwen3_5ForConditionalGeneration",
    text_section="text_config",
)
"""Its language model alone."""
QWEN3_5_MOE_TEXT = replace(
    QWEN3_NEXT,
    model_type="qwen3_5_moe_text",
    architecture="Qwen3_5MoeForCausalLM",
    fused=_fused_3_5,
)
QWEN3_5_MOE = replace(
    QWEN3_5_MOE_TEXT,
    model_type="qwen3_5_moe",
    architecture="Qwen3_5MoeForConditionalGeneration",
    text_section="text_config",
)
"""Its language model alone."""
