"""Phi-3, 3.5 and 4: as Llama, with matrices that are stored as one, and LongRoPE."""

from collections.abc import Mapping
from typing import Any

from raydix.runtime.model.families.config_fields import (
    make_spec,
    read_mlp,
    read_norm,
    read_partly_rotated_attention,
    window_in_all,
)
from raydix.runtime.model.families.definition import FamilyDefinition
from raydix.runtime.model.families.fused_rows import FusedRows
from raydix.runtime.model.families.weight_names import DECODER_NAMES
from raydix.runtime.model.spec.spec import LayerSpec, ModelSpec


def _read_spec(config: Any) -> ModelSpec:
    attention = read_partly_rotated_attention(
        config, qkv_bias=False, output_bias=False, qk_norm=None
    )
    layer = LayerSpec(attention=attention, mlp=read_mlp(config, bias=False), norm=read_norm(config))
    return make_spec(config, window_in_all(config, [layer] * config.num_hidden_layers))


def _fused(spec: ModelSpec) -> Mapping[str, FusedRows]:
    fused = {}
    for layer in range(spec.num_layers):
        attention, mlp = f"model.layers.{layer}.self_attn", f"model.layers.{layer}.mlp"
        qkv = tuple([f"{attention}.{each}_proj.weight" for each in "qkv"])
        fused[f"{attention}.qkv_proj.weight"] = FusedRows(qkv)
        gate_up = (f"{mlp}.gate_proj.weight", f"{mlp}.up_proj.weight")
        fused[f"{mlp}.gate_up_proj.weight"] = FusedRows(gate_up)
    return fused


PHI3 = FamilyDefinition(
    model_type="phi3",
    architecture="Phi3ForCausalLM",
    read_spec=_read_spec,
    weight_names=DECODER_NAMES,
    fused=_fused,
)
