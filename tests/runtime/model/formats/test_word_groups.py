"""GPTQ and AWQ: versions, rules for modules, and what other libraries make of the same words."""

from typing import Any

import pytest
import torch
from torch import Tensor

from raydix.errors import CheckpointError
from raydix.runtime.model.formats.awq import AWQ
from raydix.runtime.model.formats.gptq import GPTQ
from raydix.runtime.model.formats.packed import PackedLayout
from raydix.runtime.model.formats.word_groups import AwqLayout, GptqLayout
from tests.quantised_checkpoints import SCHEMES
from tests.quantised_matrices import QuantisedMatrix, awq, gptq

CONFIG: dict[str, Any] = {"bits": 4, "group_size": 16, "sym": True, "desc_act": False}
BASE = GptqLayout(bits=4, group=16, is_symmetric=True, is_less_one=True, is_in_any_order=False)


def random_weight() -> Tensor:
    return torch.randn(32, 64, generator=torch.Generator().manual_seed(1))


def restore(layout: GptqLayout, matrix: QuantisedMatrix, **changes: Tensor) -> Tensor:
    changed = {f".{part}": tensor for part, tensor in changes.items()}
    [(_, restored)] = layout.restore({**matrix.parts, **changed})
    return restored


@pytest.mark.parametrize(
    ("module", "bits"),
    [
        ("model.layers.0.mlp.up_proj", 4),
        ("model.layers.1.mlp.up_proj", 8),
        # The first rule that fits decides, and fits from the beginning of a name.
        ("model.layers.2.mlp.up_proj", None),
        ("language_model.model.layers.1.mlp.up_proj", 4),
    ],
)
def test_rules_change_bits_of_modules_or_leave_them_out(module: str, bits: int | None) -> None:
    dynamic = {
        r"-:model\.layers\.2\.": {},
        r"+:model\.layers\.[12]\.mlp\..*": {"bits": 8, "group_size": 32},
    }

    layout = GPTQ.read({**CONFIG, "dynamic": dynamic}).layout(module)

    if bits is None:
        assert layout is None
    else:
        assert isinstance(layout, GptqLayout)
        assert (layout.bits, layout.group) == (bits, {4: 16, 8: 32}[bits])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bits": 3}, "bits is 3; supported are 2, 4, 8"),
        ({"bits": 4.0}, r"bits is 4\.0; supported are 2, 4, 8"),
        ({"checkpoint_format": "marlin"}, "checkpoint_format 'marlin' and pack_dtype 'int32'"),
        ({"pack_dtype": "int16"}, "pack_dtype 'int16'; supported are gptq and gptq_v2, of int32"),
        ({"group_size": None}, "group_size is None; expected a whole number from 1, or -1"),
        ({"dynamic": {"+:(": {}}}, r"dynamic has '\+:\(', which is no pattern"),
        ({"dynamic": ["lm_head"]}, "dynamic is .*expected an object of patterns"),
    ],
)
def test_what_gptq_does_not_have_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        GPTQ.read({**CONFIG, **changes})


@pytest.mark.parametrize(
    "changes",
    [{"bits": 8}, {"version": "gemv"}, {"checkpoint_format": "gemv_fast"}, {"zero_point": False}],
)
def test_what_awq_does_not_have_is_refused_by_name(changes: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match=r"of AWQ has .*; supported is"):
        AWQ.read({"bits": 4, "group_size": 128, "version": "gemm", "zero_point": True, **changes})


def test_a_symmetric_matrix_has_its_zero_in_the_middle_whatever_version_is_told() -> None:
    """Files exist that tell of version 1, and store zero points as of version 2."""
    how: dict[str, Any] = {"bits": 4, "group": 16, "is_symmetric": True}
    first, second = (gptq(random_weight(), version=version, **how) for version in (1, 2))
    assert not torch.equal(first.parts[".qzeros"], second.parts[".qzeros"])

    assert torch.equal(restore(BASE, first), first.restored)
    assert torch.equal(restore(BASE, second), second.restored)


def test_zero_points_that_are_not_those_of_a_symmetric_matrix_are_told() -> None:
    matrix = gptq(random_weight(), bits=4, group=16, is_symmetric=False, version=1)
    with pytest.raises(ValueError, match=r"zero points from \d+ to \d+; expected 7 or 8 for all"):
        restore(BASE, matrix)


def test_a_zero_point_of_zero_comes_back_from_version_1() -> None:
    """Whoever writes version 1 takes one off each number of a word at once."""
    matrix = gptq(random_weight(), bits=4, group=16, is_symmetric=False, version=2)
    words = matrix.parts[".qzeros"].clone()
    words[0, 0] = 0x1234_0607
    less_one = ((words.long() & 0xFFFF_FFFF) - 0x1111_1111) & 0xFFFF_FFFF
    stored = less_one.to(torch.uint32).view(torch.int32)
    second, first = (
        GptqLayout(
            bits=4, group=16, is_symmetric=False, is_less_one=is_less_one, is_in_any_order=False
        )
        for is_less_one in (False, True)
    )

    assert torch.equal(restore(first, matrix, qzeros=stored), restore(second, matrix, qzeros=words))


def test_an_input_of_a_group_without_scales_is_told() -> None:
    matrix = gptq(random_weight(), bits=4, group=16, is_symmetric=True, version=1)
    groups = matrix.parts[".g_idx"].clone()
    groups[5] = 4
    with pytest.raises(ValueError, match="groups 0 to 4; expected groups from 0 to 3"):
        restore(BASE, matrix, g_idx=groups)


@pytest.mark.parametrize("name", [each for each in SCHEMES if each.startswith("gptq")])
def test_gptqmodel_restores_the_same_numbers(name: str) -> None:
    """Where it is installed, which Raydix does not need."""
    torch_linear = pytest.importorskip("gptqmodel.nn_modules.qlinear.torch").TorchLinear
    convert = pytest.importorskip("gptqmodel.utils.model").convert_gptq_v1_to_v2_format_module
    config, matrix = SCHEMES[name].config, SCHEMES[name].quantise(random_weight())
    linear = torch_linear(
        bits=config["bits"],
        group_size=config["group_size"],
        sym=config["sym"],
        desc_act=config["desc_act"],
        in_features=64,
        out_features=32,
        bias=False,
    )
    for part, tensor in matrix.parts.items():
        getattr(linear, part.removeprefix(".")).data = tensor.clone()
    if "checkpoint_format" not in config:
        convert(linear, config["bits"], torch.int32)
    linear.post_init()

    theirs = linear.dequantize_weight().T

    assert torch.equal(matrix.restored.to(theirs.dtype), theirs)


def test_compressed_tensors_converts_awq_to_the_same_numbers() -> None:
    """Where it is installed, which Raydix does not need."""
    converters = pytest.importorskip("compressed_tensors.entrypoints.convert.converters.autoawq")
    matrix = awq(random_weight(), group=16)
    converted = converters.AutoAWQConverter(group_size=16).process(
        {f"up_proj{part}": tensor.clone() for part, tensor in matrix.parts.items()}
    )
    packed = PackedLayout(bits=4, group=16, is_symmetric=False)

    [(_, theirs)] = packed.restore(
        {name.removeprefix("up_proj"): each for name, each in converted.items()}
    )
    [(_, ours)] = AwqLayout(group=16).restore(matrix.parts)

    assert torch.equal(ours, theirs)
    assert torch.equal(ours, matrix.restored)
