"""Small quantised checkpoints, and beside each one of the floats for which its tensors stand."""

import json
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from raydix.runtime.model.families.table import Family
from tests.checkpoints import make_checkpoint
from tests.quantised_matrices import (
    QuantisedMatrix,
    awq,
    fp8_in_blocks,
    fp8_per_tensor,
    gptq,
    int8_per_output,
    mxfp4,
    nvfp4,
    packed,
)

_MATRICES = re.compile(
    r"(?!.*(vision_tower|multi_modal_projector)).*(_proj|_with_mqa|\.w[123]|in_proj_(qkv|z))\.weight"
)
"""Weights that tests quantise: those of attention and of feed-forwards, experts among them."""


Quantise = Callable[[Tensor], QuantisedMatrix]
"""Quantises a float32 matrix."""


@dataclass(frozen=True)
class Scheme:
    """A way to quantise, as config.json tells of it."""

    quantise: Quantise
    config: Mapping[str, Any]
    """The `quantization_config` of such a checkpoint."""
    multiples: tuple[int, int] = (8, 32)
    """Outputs and inputs of matrices are multiples of these, so that words and blocks are whole."""


def quantise_checkpoint(plain: Path, scheme: Scheme) -> Path:
    """Quantise matrices of a checkpoint, which then holds what restoring them gives.

    Some whose sizes make no whole words and blocks stay floats.

    Returns the folder of the quantised one.
    """
    tensors = load_file(plain / "model.safetensors")
    stored: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        fits = not any(map(operator.mod, tensor.shape, scheme.multiples))
        if fits and _MATRICES.fullmatch(name):
            matrix = scheme.quantise(tensor)
            tensors[name] = matrix.restored
            module = name.removesuffix(".weight")
            stored |= {module + part: each for part, each in matrix.parts.items()}
        else:
            stored[name] = tensor
    save_file(tensors, plain / "model.safetensors")

    folder = plain.with_name(f"{plain.name}-quantised")
    folder.mkdir()
    config = json.loads((plain / "config.json").read_text())
    config["quantization_config"] = dict(scheme.config)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(stored, folder / "model.safetensors")
    return folder


def _make_compressed(
    quantise: Quantise, stored_as: str, weights: Mapping[str, Any], **more: Any
) -> Scheme:
    """A checkpoint of llm-compressor: all that is linear, but for the head and routers."""
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None}
    return Scheme(
        quantise,
        {
            "quant_method": "compressed-tensors",
            "format": stored_as,
            "config_groups": {"group_0": group},
            "ignore": ["lm_head", r"re:.*\.mlp\.gate$", r"re:.*vision_tower.*"],
            "quantization_status": "compressed",
            **more,
        },
    )


def _make_gptq(*, version: int, group: int | None, **how: Any) -> Scheme:
    """A checkpoint of GPTQModel, or of AutoGPTQ, which writes version 1."""
    return Scheme(
        partial(gptq, version=version, group=group, **how),
        {
            "quant_method": "gptq",
            "bits": how["bits"],
            "group_size": -1 if group is None else group,
            "sym": how["is_symmetric"],
            "desc_act": how.get("is_in_any_order", False),
            "lm_head": False,
            **({"checkpoint_format": "gptq_v2"} if version == 2 else {}),
        },
    )


SCHEMES: Mapping[str, Scheme] = {
    "fp8 blocks": Scheme(
        lambda weight: fp8_in_blocks(weight, 24, 20),
        {
            "quant_method": "fp8",
            "fmt": "e4m3",
            "activation_scheme": "dynamic",
            "weight_block_size": [24, 20],
            "modules_to_not_convert": ["lm_head", "gate", "vision_tower", "model.absent"],
        },
        multiples=(1, 1),
    ),
    "fp8 blocks of 16": Scheme(
        lambda weight: fp8_in_blocks(weight, 16, 16),
        {
            "quant_method": "fp8",
            "activation_scheme": "dynamic",
            "weight_block_size": [16, 16],
            "modules_to_not_convert": ["lm_head", "gate"],
        },
        multiples=(1, 1),
    ),
    "fp8 per tensor": Scheme(
        fp8_per_tensor,
        {"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": None},
    ),
    "fp8 of autofp8": Scheme(
        lambda weight: fp8_per_tensor(weight, ".weight_scale", ".input_scale"),
        {"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head"]},
    ),
    "float8 per tensor": _make_compressed(
        lambda weight: fp8_per_tensor(weight, ".weight_scale", ".input_scale"),
        "float-quantized",
        {"type": "float", "num_bits": 8, "strategy": "tensor", "symmetric": True},
    ),
    "float8 per output": _make_compressed(
        lambda weight: fp8_in_blocks(weight, 1, weight.shape[1], ".weight_scale"),
        "float-quantized",
        {"type": "float", "num_bits": 8, "strategy": "channel", "symmetric": True},
    ),
    "float8 blocks": _make_compressed(
        lambda weight: fp8_in_blocks(weight, 24, 20, ".weight_scale"),
        "float-quantized",
        {"type": "float", "num_bits": 8, "strategy": "block", "block_structure": [24, 20]},
    ),
    "int8 per output": _make_compressed(
        int8_per_output,
        "int-quantized",
        {"type": "int", "num_bits": 8, "strategy": "channel", "symmetric": False},
    ),
    "int4 packed": _make_compressed(
        partial(packed, bits=4, group=16, is_symmetric=True),
        "pack-quantized",
        {"type": "int", "num_bits": 4, "strategy": "group", "group_size": 16, "symmetric": True},
    ),
    "int4 packed, zero points": _make_compressed(
        partial(packed, bits=4, group=16, is_symmetric=False),
        "pack-quantized",
        {"type": "int", "num_bits": 4, "strategy": "group", "group_size": 16, "symmetric": False},
    ),
    "int8 packed": _make_compressed(
        partial(packed, bits=8, group=None, is_symmetric=False),
        "pack-quantized",
        {"type": "int", "num_bits": 8, "strategy": "channel", "symmetric": False},
    ),
    "nvfp4": _make_compressed(
        partial(
            nvfp4,
            numbers_name=".weight_packed",
            whole_name=".weight_global_scale",
            is_divisor=True,
        ),
        "nvfp4-pack-quantized",
        {"type": "float", "num_bits": 4, "strategy": "tensor_group", "group_size": 16},
    ),
    "mxfp4": _make_compressed(
        mxfp4,
        "mxfp4-pack-quantized",
        {"type": "float", "num_bits": 4, "strategy": "group", "group_size": 32},
    ),
    "gptq": _make_gptq(bits=4, group=16, is_symmetric=True, version=1),
    "gptq v2, zero points": _make_gptq(bits=4, group=16, is_symmetric=False, version=2),
    "gptq in any order": _make_gptq(
        bits=4, group=16, is_symmetric=False, version=1, is_in_any_order=True
    ),
    "gptq of 8 bits": _make_gptq(bits=8, group=None, is_symmetric=True, version=2),
    "awq": Scheme(
        partial(awq, group=16),
        {
            "quant_method": "awq",
            "bits": 4,
            "group_size": 16,
            "zero_point": True,
            "version": "gemm",
            "modules_to_not_convert": ["gate", "vision_tower"],
        },
    ),
    "modelopt fp8": Scheme(
        lambda weight: fp8_per_tensor(weight, ".weight_scale", ".input_scale"),
        {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head", "*.mlp.gate"]},
    ),
    "modelopt nvfp4": Scheme(
        partial(nvfp4, numbers_name=".weight", whole_name=".weight_scale_2", is_divisor=False),
        {
            "quant_method": "modelopt",
            "quantization": {
                "quant_algo": "NVFP4",
                "group_size": 16,
                "exclude_modules": ["lm_head", "model.layers.*.mlp.gate"],
            },
        },
    ),
}
"""One of each kind, with blocks so small that tiny matrices have several."""
_SIZES: Mapping[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_hidden_layers": 2,
}
"""Sizes of models whose matrices have whole words and blocks of four bits, as far as families have
the same ones."""
WHOLE_SIZES: Mapping[Family, Mapping[str, Any]] = {
    Family.LLAMA: {},
    Family.QWEN3: {},
    Family.MIXTRAL: {},
    Family.PHI3: {"head_dim": None},
    Family.QWEN3_MOE: {"moe_intermediate_size": 32},
    Family.DEEPSEEK_V3: {
        "num_key_value_heads": 4,
        "head_dim": None,
        "q_lora_rank": 32,
        "kv_lora_rank": 32,
        "qk_nope_head_dim": 8,
        "v_head_dim": 8,
        "moe_intermediate_size": 32,
    },
    Family.GEMMA3_WITH_VISION: {"tie_word_embeddings": False},
    Family.GEMMA3: {"tie_word_embeddings": False},
}
"""Families that every scheme is tried with, and the sizes that only they have; None: not given."""


def make_quantised(folder: Path, family: Family, scheme: str, seed: int = 11) -> tuple[Path, Path]:
    """The same weights twice: quantised, and as the floats for which that stands."""
    own = WHOLE_SIZES.get(family)
    sizes = {} if own is None else {**_SIZES, **own}
    given = {name: size for name, size in sizes.items() if size is not None}
    plain = make_checkpoint(folder / "plain", family, seed=seed, **given)
    return quantise_checkpoint(plain, SCHEMES[scheme]), plain
