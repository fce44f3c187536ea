"""Experts with weights of four bits, kernels against their twin."""

import pytest
import torch

pytest.importorskip("triton")

from raydix.kernels.dense.glu_form import ClampedGlu, GluForm, SiluGlu
from raydix.kernels.int4.int4_experts import int4_experts
from raydix.kernels.int4.tiles import EXPERT_TILES, ExpertTiles, Int4Tile
from raydix.kernels.moe import expert_inputs
from raydix.kernels.reference import int4_linear as reference
from raydix.kernels.reference.experts import topk_gating
from raydix.kernels.weights.int4_weight import Int4Weight
from tests.kernels.int4.groups import random_inputs, random_weight


def small_tiles(rows: int) -> ExpertTiles:
    tile = Int4Tile(rows=rows, columns=64, num_warps=4, num_stages=2)
    return ExpertTiles(max_mean_rows=1, gate_up=tile, down=tile)


SHAPES = [(3, 128, 128, 4, 2), (20, 208, 192, 5, 2), (150, 64, 80, 2, 1)]


def make_layer(
    shape: tuple[int, int, int, int, int], group: int | None, device: torch.device
) -> tuple[torch.Tensor, Int4Weight, Int4Weight, torch.Tensor, torch.Tensor]:
    """The tensors x, gate_up, down, weights and expert ids."""
    tokens, hidden, intermediate, experts, choices = shape
    gate_up = random_weight(experts, 2 * intermediate, hidden, group=group, device=device)
    down = random_weight(experts, hidden, intermediate, group=group, device=device, seed=1)
    logits = torch.randn(tokens, experts, generator=torch.Generator().manual_seed(0))
    weights, ids = topk_gating(logits, choices, renormalise=True)
    x = random_inputs(tokens, hidden, device=device)
    return x, gate_up, down, weights.to(device), ids.to(device)


def assert_near(out: torch.Tensor, expected: torch.Tensor) -> None:
    assert (out - expected).norm() / expected.norm() < 1e-5


@pytest.mark.parametrize("rows", [16, 64])
@pytest.mark.parametrize("group", [32, 128, None])
@pytest.mark.parametrize("shape", SHAPES)
def test_experts_match_the_twin(
    device: torch.device, shape: tuple[int, int, int, int, int], group: int | None, rows: int
) -> None:
    layer = make_layer(shape, group, device)

    out = int4_experts(*layer, form=SiluGlu(), tiles=small_tiles(rows))

    assert_near(out, reference.int4_experts(*layer, form=SiluGlu()))


@pytest.mark.parametrize("form", [ClampedGlu(slope=1.702, limit=0.5)])
def test_experts_of_other_forms_match_the_twin(device: torch.device, form: GluForm) -> None:
    layer = make_layer(SHAPES[0], 32, device)
    assert_near(int4_experts(*layer, form=form), reference.int4_experts(*layer, form=form))


def test_experts_too_large_for_l2_match_the_twin(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expert_inputs, "_LARGE_EXPERT_BYTES", 1)
    layer = make_layer(SHAPES[2], 32, device)

    out = int4_experts(*layer, form=SiluGlu(), tiles=small_tiles(16))

    assert_near(out, reference.int4_experts(*layer, form=SiluGlu()))


def test_choices_without_an_expert_add_nothing(device: torch.device) -> None:
    x, gate_up, down, weights, ids = make_layer(SHAPES[0], 64, device)
    kept = weights.clone()
    kept[::2, 0] = 0.0
    expected = reference.int4_experts(x, gate_up, down, kept, ids, form=SiluGlu())
    ids[::2, 0] = -1

    out = int4_experts(x, gate_up, down, weights, ids.int(), form=SiluGlu())

    assert_near(out, expected)


def test_scales_of_another_expert_are_seen(device: torch.device) -> None:
    x, gate_up, down, weights, ids = make_layer(SHAPES[0], 32, device)
    swapped = Int4Weight(down.numbers, down.scales_GO.flip(0), down.zeros_GO, down.form)

    out = int4_experts(x, gate_up, swapped, weights, ids, form=SiluGlu())

    with pytest.raises(AssertionError):
        assert_near(out, reference.int4_experts(x, gate_up, down, weights, ids, form=SiluGlu()))


def test_no_tokens_give_no_rows(device: torch.device) -> None:
    layer = make_layer((0, 128, 64, 4, 2), 32, device)
    assert int4_experts(*layer, form=SiluGlu()).shape == (0, 128)


def test_a_bank_of_other_sizes_is_refused(device: torch.device) -> None:
    x, gate_up, down, weights, ids = make_layer(SHAPES[0], 32, device)
    with pytest.raises(ValueError, match=r"expected \[E, 2 x I, C / 2\]"):
        int4_experts(x, down, down, weights, ids, form=SiluGlu())
    with pytest.raises(ValueError, match="expected contiguous float32"):
        int4_experts(x, gate_up, down, weights.double(), ids, form=SiluGlu())


@pytest.mark.gpu
@pytest.mark.parametrize("tiles", EXPERT_TILES, ids=str)
@pytest.mark.parametrize("tokens", [1, 300, 3000])
@pytest.mark.parametrize("layer", [(2048, 768, 128, 8), (1024, 1408, 8, 2)])
def test_every_bucket_is_as_exact_as_bfloat16_allows(
    layer: tuple[int, int, int, int], tokens: int, tiles: ExpertTiles
) -> None:
    x, *rest = make_layer((tokens, *layer), 128, torch.device("cuda"))

    out = int4_experts(x.bfloat16(), *rest, form=SiluGlu(), tiles=tiles)

    expected = reference.int4_experts(x.bfloat16(), *rest, form=SiluGlu()).float()
    assert (out.float() - expected).norm() / expected.norm() < 1e-2


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [8, 2000])
def test_a_captured_graph_follows_its_inputs(tokens: int) -> None:
    x, gate_up, down, weights, ids = make_layer((tokens, 256, 128, 16, 4), 64, torch.device("cuda"))
    x, rest = x.bfloat16(), (gate_up, down, weights, ids)
    int4_experts(x, *rest, form=SiluGlu())
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = int4_experts(x, *rest, form=SiluGlu())
    x.normal_()
    ids.copy_(ids.flip(0))

    graph.replay()

    torch.testing.assert_close(out, int4_experts(x, *rest, form=SiluGlu()))
