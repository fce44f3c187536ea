"""gpt-oss: windows in every other layer, sinks, and experts whose gate and up take turns."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from raydix.kernels.dense.glu_form import ClampedGlu
from raydix.kernels.moe.routing import SoftmaxRouting
from raydix.runtime.model.families.config_fields import (
    make_spec,
    read_attention,
    read_norm,
    read_positive,
    require_enough_experts,
    window_by_type,
)
from raydix.runtime.model.families.definition import FamilyDefinition
from raydix.runtime.model.families.weight_names import DECODER_NAMES
from raydix.runtime.model.formats.restoring import Tensors
from raydix.runtime.model.spec.spec import LayerSpec, ModelSpec, MoeMlpSpec

if TYPE_CHECKING:
    from torch import Tensor

_SLOPE = 1.702
"""The slope of the activation, where the config does not say."""
_EXPERT_NAMES: Mapping[str, str] = {
    "layers.{}.attention": "model.layers.{}.self_attn",
    "layers.{}.mlp.router": "model.layers.{}.mlp.router",
    "layers.{}.mlp.experts.{}.gate": "model.layers.{}.mlp.experts.gate_up_proj[{}].gate",
    "layers.{}.mlp.experts.{}.up": "model.layers.{}.mlp.experts.gate_up_proj[{}].up",
    "layers.{}.mlp.experts.{}.down": "model.layers.{}.mlp.experts.down_proj[{}]",
}
"""Parts of stacked tensors are called by them; the part `attention` has the sinks."""


def _read_spec(config: Any) -> ModelSpec:
    require_enough_experts(config.num_experts_per_tok, config.num_local_experts)
    bias, norm = bool(config.attention_bias), replace(read_norm(config), is_float32=True)
    attention = replace(
        read_attention(config, qkv_bias=bias, output_bias=bias, qk_norm=None), has_sinks=True
    )
    mlp = MoeMlpSpec(
        num_experts=config.num_local_experts,
        experts_per_token=config.num_experts_per_tok,
        intermediate_size=config.intermediate_size,
        # A softmax over the chosen experts' logits is one over all, divided by the chosen's sum.
        routing=SoftmaxRouting(renormalise=True),
        shared=None,
        glu=ClampedGlu(
            slope=read_positive(config, "swiglu_alpha", _SLOPE),
            limit=read_positive(config, "swiglu_limit"),
        ),
        bias=True,
    )
    layer = LayerSpec(attention=attention, mlp=mlp, norm=norm)
    layers = window_by_type(config, [layer] * config.num_hidden_layers)
    return replace(make_spec(config, layers), final_norm=norm)


def _restore(tensors: Tensors, spec: ModelSpec) -> Tensors:
    """Take the experts' tensors apart, in which gate and up take turns.

    MXFP4 has its matrices apart already, each named by its expert.
    """
    for name, tensor in tensors:
        found = re.fullmatch(r"(.*\.experts\.(?:gate_up|down)_proj)(|_bias|\[\d+\])", name)
        if found is None:
            yield name, tensor
            continue

        stacked, kind = found.groups()
        if kind.startswith("["):
            yield from _parts(name, "weight", tensor)
        else:
            for expert, each in enumerate(tensor):
                # Weights that are not packed are [in, out]; the decoder has [out, in].
                part_kind = "bias" if kind else "weight"
                yield from _parts(f"{stacked}[{expert}]", part_kind, each if kind else each.T)


def _parts(name: str, kind: str, rows: "Tensor") -> Tensors:
    """The tensors of one expert, of which `rows` are the outputs."""
    if ".down_proj[" in name:
        yield f"{name}.{kind}", rows
    else:
        yield f"{name}.gate.{kind}", rows[::2]
        yield f"{name}.up.{kind}", rows[1::2]


GPT_OSS = FamilyDefinition(
    model_type="gpt_oss",
    architecture="GptOssForCausalLM",
    read_spec=_read_spec,
    weight_names={**DECODER_NAMES, **_EXPERT_NAMES},
    restore=_restore,
)
