"""Qwen3 with experts, of which some layers may have none, and the language model of Qwen3-VL with
experts.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from raydix.errors import CheckpointError
from raydix.kernels.moe.routing import SoftmaxRouting
from raydix.runtime.model.families.config_fields import (
    make_spec,
    read_attention,
    read_glu,
    read_mlp,
    read_norm,
    require_enough_experts,
    window_in_all,
)
from raydix.runtime.model.families.definition import FamilyDefinition
from raydix.runtime.model.families.weight_names import DECODER_NAMES, EXPERT_NAMES, QK_NORM_NAMES
from raydix.runtime.model.formats.restoring import Tensors, take_experts_apart
from raydix.runtime.model.formats.stored_tensor import FETCH_BOTH
from raydix.runtime.model.spec.spec import DenseMlpSpec, LayerSpec, ModelSpec, MoeMlpSpec

if TYPE_CHECKING:
    from torch import Tensor


def _read_spec(config: Any) -> ModelSpec:
    return make_spec(config, window_in_all(config, _read_layers(config)))


def _read_vl(config: Any) -> ModelSpec:
    # The three positions of a token of text are one: it is rotated as by a plain embedding.
    return make_spec(config, tuple(_read_layers(config)))


def _read_layers(config: Any) -> list[LayerSpec]:
    norm, bias = read_norm(config), bool(config.attention_bias)
    attention = read_attention(config, qkv_bias=bias, output_bias=bias, qk_norm=norm)
    return [
        LayerSpec(attention=attention, mlp=read_mlp_of_layer(config, layer), norm=norm)
        for layer in range(config.num_hidden_layers)
    ]


def read_mlp_of_layer(config: Any, layer: int) -> DenseMlpSpec | MoeMlpSpec:
    """The feed-forward of a layer: experts in every so many of them, but for some by number."""
    # Configs of Qwen3.5 and Qwen3-VL do not say that weights may not add up, and the former's say
    # nothing of layers without experts.
    is_sparse = (
        layer not in (getattr(config, "mlp_only_layers", None) or ())
        and config.num_experts > 0
        and (layer + 1) % getattr(config, "decoder_sparse_step", 1) == 0
    )
    if not is_sparse:
        return read_mlp(config, bias=False)

    require_enough_experts(config.num_experts_per_tok, config.num_experts)
    return MoeMlpSpec(
        num_experts=config.num_experts,
        experts_per_token=config.num_experts_per_tok,
        intermediate_size=config.moe_intermediate_size,
        routing=SoftmaxRouting(renormalise=getattr(config, "norm_topk_prob", True)),
        shared=None,
        glu=read_glu(config.hidden_act),
    )


QWEN3_MOE = FamilyDefinition(
    model_type="qwen3_moe",
    architecture="Qwen3MoeForCausalLM",
    read_spec=_read_spec,
    weight_names={**DECODER_NAMES, **QK_NORM_NAMES, **EXPERT_NAMES},
)


def _restore_vl(tensors: Tensors, spec: ModelSpec) -> Tensors:
    """Its experts are stored as one tensor, of which each is taken.

    That is [experts, inputs, outputs] as it was published, and [experts, outputs, inputs] as
    transformers saves it.
    """
    hidden = spec.hidden_size
    sizes = [each.mlp.intermediate_size for each in spec.layers if isinstance(each.mlp, MoeMlpSpec)]
    if not sizes:
        return tensors
    shapes = {"gate_up_proj": (2 * sizes[0], hidden), "down_proj": (hidden, sizes[0])}
    return take_experts_apart(_outputs_first(tensors, shapes))


def _outputs_first(tensors: Tensors, shapes: Mapping[str, tuple[int, int]]) -> Tensors:
    """Pass on stacks as [experts, outputs, inputs]; `shapes`: the last two, by kind.

    All stacks of a checkpoint lie alike. Those of one kind may be square, and do not tell how: they
    are held until one of the other kind does. Raises CheckpointError if none comes.
    """
    are_turned: bool | None = None
    held: list[tuple[str, Tensor]] = []
    for name, tensor in tensors:
        bank, _, kind = name.rpartition(".")
        if not bank.endswith(".experts") or kind not in shapes:
            yield name, tensor
            continue

        outputs, inputs = shapes[kind]
        if outputs != inputs:
            are_turned = tensor.shape[1] != outputs
        held.append((name, tensor))
        if are_turned is not None:
            for each, stack in held:
                yield each, stack.transpose(1, 2) if are_turned else stack
            held.clear()

    if held:
        raise CheckpointError(
            f"{held[0][0]} has the shape {list(held[0][1].shape)}, and nothing tells which of its "
            "last two dimensions are outputs: the other stacks of experts are missing. "
            f"{FETCH_BOTH}"
        )


QWEN3_VL_MOE = replace(
    QWEN3_MOE,
    model_type="qwen3_vl_moe",
    architecture="Qwen3VLMoeForConditionalGeneration",
    text_section="text_config",
    read_spec=_read_vl,
    restore=_restore_vl,
)
"""Its language model alone: what only images need is left in the checkpoint."""
