"""Mistral and Ministral 3: as Llama, where every layer may have a window."""

from dataclasses import replace
from typing import Any

from raydix.errors import CheckpointError
from raydix.runtime.model.families.config_fields import (
    make_spec,
    read_attention,
    read_mlp,
    read_norm,
    window_in_all,
)
from raydix.runtime.model.families.definition import FamilyDefinition
from raydix.runtime.model.families.weight_names import DECODER_NAMES
from raydix.runtime.model.spec.rope_spec import REMEDY, YarnRope, positive
from raydix.runtime.model.spec.spec import AttentionSpec, LayerSpec, ModelSpec


def _read_mistral(config: Any) -> ModelSpec:
    return _make_spec(
        config, read_attention(config, qkv_bias=False, output_bias=False, qk_norm=None)
    )


def _read_ministral3(config: Any) -> ModelSpec:
    attention = read_attention(config, qkv_bias=False, output_bias=False, qk_norm=None)
    parameters = config.rope_parameters
    if parameters.get(_QUERY_GROWTH) is None:
        return _make_spec(config, attention)
    if not isinstance(attention.rope, YarnRope):
        raise CheckpointError(
            f"rope_type is {parameters['rope_type']!r} beside {_QUERY_GROWTH}; expected 'yarn', "
            f"whose original context that is about. {REMEDY}"
        )
    rope = replace(attention.rope, query_growth=positive(parameters, _QUERY_GROWTH))
    return _make_spec(config, replace(attention, rope=rope))


def _read_either(config: Any) -> ModelSpec:
    """The language model of a Mistral 3, which is the one or the other."""
    match config.model_type:
        case "mistral":
            return _read_mistral(config)
        case "ministral3":
            return _read_ministral3(config)
        case other:
            raise CheckpointError(
                f"The language model of the mistral3 has model_type {other!r}; supported are "
                f"'mistral' and 'ministral3'."
            )


def _make_spec(config: Any, attention: AttentionSpec) -> ModelSpec:
    layer = LayerSpec(attention=attention, mlp=read_mlp(config, bias=False), norm=read_norm(config))
    return make_spec(config, window_in_all(config, [layer] * config.num_hidden_layers))


_QUERY_GROWTH = "llama_4_scaling_beta"
MISTRAL = FamilyDefinition(
    model_type="mistral",
    architecture="MistralForCausalLM",
    read_spec=_read_mistral,
    weight_names=DECODER_NAMES,
)
MINISTRAL3 = FamilyDefinition(
    model_type="ministral3",
    architecture="Ministral3ForCausalLM",
    read_spec=_read_ministral3,
    weight_names=DECODER_NAMES,
)
MISTRAL3 = FamilyDefinition(
    model_type="mistral3",
    architecture="Mistral3ForConditionalGeneration",
    text_section="text_config",
    read_spec=_read_either,
    weight_names=DECODER_NAMES,
)
"""The language model alone: what only images need is left in the checkpoint."""
