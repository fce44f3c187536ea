"""What restoring holds beside a matrix, and that rows made apart are those of the whole."""

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from raydix.runtime.model.formats import matrices
from raydix.runtime.model.formats.kept_layout import KeptLayout
from raydix.runtime.model.formats.layout import Layout
from raydix.runtime.model.formats.mxfp4 import StackedMxfp4
from raydix.runtime.model.formats.table import WEIGHT_FORMATS
from tests.quantised_checkpoints import SCHEMES

_FLOAT_BYTES = 4


def layout_of(scheme: str) -> Layout:
    """How the scheme stores a module."""
    config = SCHEMES[scheme].config
    [known] = [each for each in WEIGHT_FORMATS if each.quant_method == config["quant_method"]]
    layout = known.read(config).layout("model.layers.0.mlp.up_proj")
    assert layout is not None
    return layout


def parts_of(scheme: str, outputs: int, inputs: int) -> Mapping[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return SCHEMES[scheme].quantise(torch.randn(outputs, inputs, generator=generator)).parts


def peak_bytes(layout: Layout, parts: Mapping[str, Tensor], *, is_kept: bool) -> int:
    """The most bytes that are allocated at once while the largest tensor is made."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
        made = layout.keep(parts) if is_kept else layout.restore(parts)
        next(made)
    events = [
        each for each in watched.profiler.kineto_results.events() if each.name() == "[memory]"
    ]
    held = peak = 0
    for each in sorted(events, key=lambda event: event.start_ns()):
        held += each.nbytes()
        peak = max(peak, held)
    return peak


@pytest.mark.parametrize("scheme", SCHEMES)
def test_restoring_holds_one_matrix_and_a_few_rows(
    scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs, inputs, num_block = 1024, 1920, 1 << 14
    monkeypatch.setattr(matrices, "_BLOCK_NUMBERS", num_block)
    layout, parts = layout_of(scheme), parts_of(scheme, outputs, inputs)

    matrix_bytes = outputs * inputs * _FLOAT_BYTES
    # What belongs to groups, as zero points in words, is small beside it.
    most = matrix_bytes + 12 * num_block * _FLOAT_BYTES + matrix_bytes // 8
    assert matrix_bytes <= peak_bytes(layout, parts, is_kept=False) <= most
    if isinstance(layout, KeptLayout) and layout.kept_form is not None:
        assert peak_bytes(layout, parts, is_kept=True) <= most - 3 * matrix_bytes // 4


@pytest.mark.parametrize("num_block", [1, 3000, 1 << 22])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_rows_that_are_made_apart_are_those_of_the_whole(
    scheme: str, num_block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matrices, "_BLOCK_NUMBERS", num_block)
    matrix = SCHEMES[scheme].quantise(torch.randn(200, 160, generator=torch.Generator()))

    [(_, restored)] = layout_of(scheme).restore(matrix.parts)

    assert torch.equal(restored.view(torch.int32), matrix.restored.float().view(torch.int32))


def test_stacked_experts_hold_one_matrix_and_a_few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrices, "_BLOCK_NUMBERS", 1 << 14)
    generator = torch.Generator().manual_seed(1)
    parts = {
        "_blocks": torch.randint(256, (2, 1024, 60, 16), generator=generator).to(torch.uint8),
        "_scales": torch.randint(254, (2, 1024, 60), generator=generator).to(torch.uint8),
    }
    matrix_bytes = 1024 * 60 * 32 * _FLOAT_BYTES
    peak = peak_bytes(StackedMxfp4(), parts, is_kept=False)
    assert matrix_bytes <= peak <= matrix_bytes + 12 * (1 << 14) * _FLOAT_BYTES
