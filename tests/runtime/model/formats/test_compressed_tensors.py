"""What configs of compressed-tensors tell of which module, and what the library makes of it."""

from pathlib import Path
from typing import Any

import pytest
import torch

from raydix.errors import CheckpointError
from raydix.runtime.model.formats.compressed_tensors import COMPRESSED_TENSORS
from raydix.runtime.model.formats.four_bit import Nvfp4Layout
from raydix.runtime.model.formats.layout import Layout
from raydix.runtime.model.formats.packed import PackedLayout
from raydix.runtime.model.formats.restore_plan import plan_restoring
from raydix.runtime.model.formats.scaled import PER_OUTPUT, ScaledLayout
from raydix.runtime.model.formats.stored_tensor import StoredTensor
from tests.quantised_checkpoints import SCHEMES
from tests.quantised_matrices import in_groups, pack

INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True}
FLOAT8 = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True}
BLOCKS_OF_TRUE = {**FLOAT8, "strategy": "block", "block_structure": [True, 16]}
ATTENTION = "model.layers.3.self_attn.q_proj"
EXPERT = "model.layers.3.mlp.experts.7.up_proj"


def group(weights: dict[str, Any], *targets: str, **more: Any) -> dict[str, Any]:
    return {"weights": weights, "targets": list(targets), **more}


def layout(module: str, ignore: list[str], *groups: dict[str, Any]) -> Layout | None:
    numbered = {f"group_{number}": each for number, each in enumerate(groups)}
    config = {"format": "pack-quantized", "config_groups": numbered, "ignore": ignore}
    return COMPRESSED_TENSORS.read(config).layout(module)


PACKED = PackedLayout(bits=4, group=32, is_symmetric=True)
SCALED = ScaledLayout(dtype="F8_E4M3", block=PER_OUTPUT)
BY_CLASS = group(INT4, "Linear")
BY_PATTERN = group(FLOAT8, r"re:.*self_attn.*", format="float-quantized")
BY_NAME = group(FLOAT8, EXPERT, format="float-quantized")


@pytest.mark.parametrize(
    ("module", "ignore", "groups", "expected"),
    [
        (ATTENTION, [], (BY_CLASS,), PACKED),
        (ATTENTION, [], (BY_CLASS, BY_PATTERN), SCALED),
        (EXPERT, [], (BY_CLASS, BY_PATTERN), PACKED),
        (EXPERT, [], (BY_CLASS, BY_PATTERN, BY_NAME), SCALED),
        (EXPERT, [], (BY_PATTERN,), None),
        (ATTENTION, [r"re:.*self_attn.*"], (BY_CLASS,), None),
        (EXPERT, [r"re:.*self_attn.*"], (BY_CLASS,), PACKED),
        (ATTENTION, [ATTENTION], (BY_CLASS,), None),
        # Names are whole, and patterns begin at the beginning.
        (ATTENTION, ["q_proj", "re:self_attn", "Conv2d"], (BY_CLASS,), PACKED),
        # As Kimi-K2.5 has them: only routed experts are packed.
        (EXPERT, ["lm_head", r"re:.*mlp\.(gate|up|gate_up|down)_proj.*"], (BY_CLASS,), PACKED),
    ],
)
def test_exact_names_go_before_patterns_and_those_before_the_class(
    module: str, ignore: list[str], groups: tuple[dict[str, Any], ...], expected: Layout | None
) -> None:
    assert layout(module, ignore, *groups) == expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"config_groups": {}}, "config_groups is {}; expected an object with a group"),
        ({"transform_config": {"config_groups": {"R1": {}}}}, "rotated weights"),
        ({"sparsity_config": {"format": "sparse-24-bitmask"}}, "'sparse-24-bitmask'; supported"),
        ({"ignore": ["re:("]}, r"ignore has 're:\(', which is no pattern"),
        ({"format": "marlin-24"}, "stores int of 4 bits as 'marlin-24'; supported are"),
        (
            {"config_groups": {"a": group({**INT4, "num_bits": 3}, "Linear")}},
            "a stores int of 3 bits as 'pack-quantized'",
        ),
        (
            {"config_groups": {"a": group({**INT4, "num_bits": 4.0}, "Linear")}},
            r"a stores int of 4\.0 bits as 'pack-quantized'",
        ),
        (
            {"config_groups": {"a": group({**INT4, "group_size": None}, "Linear")}},
            "a.weights has strategy 'group' and group_size None",
        ),
        (
            {"config_groups": {"a": group({**INT4, "group_size": True}, "Linear")}},
            "a.weights has strategy 'group' and group_size True",
        ),
        (
            {"config_groups": {"a": group(BLOCKS_OF_TRUE, "Linear", format="float-quantized")}},
            r"a.weights has strategy 'block' and block_structure \[True, 16\]",
        ),
        ({"config_groups": {"a": {"targets": ["Linear"], "weights": None}}}, "a is {.*expected an"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    config = {"format": "pack-quantized", "config_groups": {"group_0": BY_CLASS}, **changes}
    with pytest.raises(CheckpointError, match=message):
        COMPRESSED_TENSORS.read(config)


def test_a_module_that_is_named_as_quantised_must_be_so() -> None:
    layouts = COMPRESSED_TENSORS.read({"config_groups": {"group_0": BY_NAME}})
    floats = StoredTensor(
        name=f"{EXPERT}.weight", path=Path("w"), offset=0, num_bytes=8, dtype="BF16", shape=(2, 2)
    )

    with pytest.raises(CheckpointError, match=f"{EXPERT}.weight is BF16, but config.json names"):
        plan_restoring([floats], layouts, "quantisation")


def test_groups_of_older_files_are_those_that_are_stored() -> None:
    """Inputs in the order in which they were quantised, not side by side."""
    weight = torch.randn(8, 16, generator=torch.Generator().manual_seed(1))
    groups_K = [3, 0, 1, 2] * 4
    expected = in_groups(weight, bits=4, groups_K=groups_K, is_symmetric=True)
    parts = {
        ".weight_packed": pack(expected.numbers_NK, 4),
        ".weight_scale": expected.scales_NG,
        ".weight_shape": torch.tensor([8, 16]),
        ".weight_g_idx": torch.tensor(groups_K, dtype=torch.int32),
    }
    packed = PackedLayout(bits=4, group=4, is_symmetric=True)

    [(_, restored)] = packed.restore(parts)
    assert torch.equal(restored, expected.restored)

    parts[".weight_g_idx"][3] = 4
    with pytest.raises(ValueError, match="groups 0 to 4; expected groups from 0 to 3"):
        next(packed.restore(parts))


def test_a_shape_that_is_not_that_of_the_words_is_told() -> None:
    parts = {
        ".weight_packed": torch.zeros(8, 2, dtype=torch.int32),
        ".weight_scale": torch.ones(8, 1),
        ".weight_shape": torch.tensor([8, 15]),
    }
    with pytest.raises(ValueError, match=r"has shape \[8, 15\] by weight_shape, and \[8, 16\]"):
        next(PackedLayout(bits=4, group=16, is_symmetric=True).restore(parts))


def test_nvfp4_of_two_matrices_keeps_the_scales_of_both() -> None:
    """Gate and up of an expert may be scaled differently."""
    nvfp4 = Nvfp4Layout(numbers=".weight", whole_scale=".weight_scale_2", is_divisor=False)
    parts = {
        ".weight": torch.full((1, 8), 0x22, dtype=torch.uint8),
        ".weight_scale": torch.ones(1, 1).to(torch.float8_e4m3fn),
    }
    halves = [
        next(nvfp4.restore({**parts, ".weight_scale_2": torch.tensor(scale)}))[1]
        for scale in (0.5, 0.25)
    ]
    assert [float(half.unique()) for half in halves] == [0.5, 0.25]


COMPRESSED = [
    name for name, each in SCHEMES.items() if each.config["quant_method"] == "compressed-tensors"
]


@pytest.mark.parametrize("name", COMPRESSED)
def test_the_library_restores_the_same_numbers(name: str) -> None:
    """Where it is installed, which Raydix does not need."""
    library = pytest.importorskip("compressed_tensors.compressors")
    quantization = pytest.importorskip("compressed_tensors.quantization")
    scheme = SCHEMES[name]
    matrix = scheme.quantise(torch.randn(96, 64, generator=torch.Generator().manual_seed(1)))
    [config] = scheme.config["config_groups"].values()
    stored = {part.removeprefix("."): each for part, each in matrix.parts.items()}
    stored["weight_scale"] = (
        stored["weight_scale"].reshape(-1, stored["weight_scale"].shape[-1])
        if stored["weight_scale"].dim()
        else stored["weight_scale"].reshape(1)
    )

    compressor = library.BaseCompressor.get_value_from_registry(scheme.config["format"])
    theirs = compressor.decompress(stored, quantization.QuantizationScheme(**config))["weight"]

    assert torch.equal(matrix.restored.to(theirs.dtype), theirs)
