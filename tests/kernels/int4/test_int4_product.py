"""Products with weights of four bits, kernels against their twin."""

import pytest
import torch

pytest.importorskip("triton")

from raydix.kernels.dense.summands import add_up
from raydix.kernels.int4.form import Int4Groups
from raydix.kernels.int4.int4_product import int4_linear, int4_summands
from raydix.kernels.int4.restoring import restore
from raydix.kernels.int4.tiles import LINEAR_TILES, Int4Tile, LinearTiles, linear_tiles
from raydix.kernels.reference import int4_linear as reference
from raydix.kernels.weights.int4_weight import Int4Weight
from raydix.kernels.weights.weight import Weight
from tests.kernels.int4.groups import random_inputs, random_weight


def small_tiles(rows: int, programs: int, num_warps: int = 4) -> LinearTiles:
    tile = Int4Tile(rows=rows, columns=16 * num_warps, num_warps=num_warps, num_stages=2)
    return LinearTiles(max_tokens=1, tile=tile, programs_per_sm=programs, max_summands=8)


def multiply(x: torch.Tensor, weight: Int4Weight, tiles: LinearTiles | None) -> torch.Tensor:
    out = int4_summands(x, weight, tiles)
    return out if out.dim() == 2 else add_up(out, x.dtype)


@pytest.mark.parametrize("tiles", [small_tiles(16, 1), small_tiles(16, 8), small_tiles(64, 8, 8)])
@pytest.mark.parametrize("group", [32, 64, 96, 128, None])
@pytest.mark.parametrize("shape", [(1, 128, 256), (20, 150, 208), (70, 72, 48)])
def test_products_match_the_twin(
    device: torch.device, shape: tuple[int, int, int], group: int | None, tiles: LinearTiles
) -> None:
    tokens, outputs, inputs = shape
    weight = random_weight(outputs, inputs, group=group, device=device, bias=True)
    x = random_inputs(tokens, inputs, device=device)

    out = multiply(x, weight, tiles)

    torch.testing.assert_close(out, reference.int4_linear(x, weight), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("group", [32, None])
def test_matrices_are_restored_bit_for_bit(device: torch.device, group: int | None) -> None:
    weight = random_weight(70, 208, group=group, device=device)
    assert torch.equal(restore(weight, torch.float32), reference.restore(weight, torch.float32))


def test_every_number_less_every_zero_point_is_restored_in_every_place(
    device: torch.device,
) -> None:
    """Numbers become floats where they lie in a word, which no other number may touch."""
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    weight = random_weight(256 * 16, 32, group=32, device=device)
    row = torch.arange(256 * 16, device=device)
    weight.zeros_GO.data = (row % 256).to(torch.uint8)[None]
    number = (row // 256).to(torch.uint8)[:, None]
    others = weight.numbers.matrix_OC.data
    for shift in (0, 4):
        weight.numbers.matrix_OC.data = others & (0xF0 >> shift) | number << shift
        assert torch.equal(restore(weight, dtype), reference.restore(weight, dtype))


def test_tiles_have_rows_for_every_warp() -> None:
    with pytest.raises(AssertionError, match="gives warps no whole rows"):
        Int4Tile(rows=16, columns=64, num_warps=8, num_stages=2)


@pytest.mark.gpu
def test_matrices_are_rounded_as_the_twin_rounds() -> None:
    weight = random_weight(700, 1024, group=128, device=torch.device("cuda"))
    assert torch.equal(restore(weight, torch.bfloat16), reference.restore(weight, torch.bfloat16))


def test_more_tokens_than_tiles_are_for_restore_the_matrix_first(device: torch.device) -> None:
    weight = random_weight(40, 64, group=32, device=device, bias=True)
    x = random_inputs(LINEAR_TILES[-1].max_tokens + 1, 64, device=device)
    assert linear_tiles(len(x)) is None

    out = int4_linear(x, weight)

    torch.testing.assert_close(out, reference.int4_linear(x, weight), atol=1e-5, rtol=1e-5)


def test_inputs_are_divided_whatever_the_tokens(device: torch.device) -> None:
    """The sums of a row are the same whatever is beside it."""
    weight = random_weight(64, 512, group=64, device=device)
    x = random_inputs(20, 512, device=device)
    tiles = small_tiles(16, 8)
    shapes = {int4_summands(x[:count], weight, tiles).shape[0] for count in (1, 16, 20)}
    assert shapes == {8}
    assert torch.equal(multiply(x, weight, tiles)[:1], multiply(x[:1], weight, tiles))


@pytest.mark.parametrize("fault", ["scales", "zeros", "halves"])
def test_what_changes_places_is_seen(device: torch.device, fault: str) -> None:
    weight = random_weight(64, 128, group=32, device=device)
    numbers, scales, zeros = weight.numbers.matrix_OC.data, weight.scales_GO, weight.zeros_GO
    swapped = {
        "scales": (numbers, scales.flip(0), zeros),
        "zeros": (numbers, scales, zeros.flip(0)),
        "halves": (numbers >> 4 | numbers << 4, scales, zeros),
    }[fault]
    x = random_inputs(3, 128, device=device)

    out = int4_linear(x, Int4Weight(Weight(swapped[0], None), *swapped[1:], Int4Groups(32)))

    assert (out - reference.int4_linear(x, weight)).abs().max() > 0.1


def test_no_tokens_give_no_rows(device: torch.device) -> None:
    weight = random_weight(64, 128, group=None, device=device)
    assert int4_linear(random_inputs(0, 128, device=device), weight).shape == (0, 64)


def test_what_kernels_do_not_know_is_refused(device: torch.device) -> None:
    weight = random_weight(64, 128, group=16, device=device)
    x = random_inputs(3, 128, device=device)
    with pytest.raises(ValueError, match="Groups are of 16 inputs; expected a multiple of 32"):
        int4_linear(x, weight)
    weight = random_weight(64, 128, group=32, device=device)
    with pytest.raises(ValueError, match="expected contiguous uint8 of 2 dimensions with 64"):
        int4_linear(x[:, :64], weight)
    with pytest.raises(ValueError, match="expected bfloat16 or float32"):
        int4_linear(x.half(), weight)
    weight.scales_GO.data = weight.scales_GO.data[:2]
    with pytest.raises(ValueError, match=r"expected contiguous float32 and uint8 \(4, 64\)"):
        int4_linear(x, weight)


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [1, 16, 33, 64, 100, 500, 3000])
@pytest.mark.parametrize("group", [32, 128, None])
@pytest.mark.parametrize("size", [(4096, 2048), (576, 7168), (5120, 2880)])
def test_every_bucket_is_as_exact_as_bfloat16_allows(
    size: tuple[int, int], group: int | None, tokens: int
) -> None:
    weight = random_weight(*size, group=group, device=torch.device("cuda"))
    x = random_inputs(tokens, size[1], device=torch.device("cuda")).bfloat16()

    out = int4_linear(x, weight).float()

    expected = x.float() @ reference.restore(weight, torch.bfloat16).float().T
    assert (out - expected).norm() / expected.norm() < 4e-3


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [8, 2000])
def test_a_captured_graph_follows_its_inputs(tokens: int) -> None:
    weight = random_weight(512, 256, group=128, device=torch.device("cuda"))
    x = random_inputs(tokens, 256, device=torch.device("cuda")).bfloat16()
    int4_linear(x, weight)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = int4_linear(x, weight)
    x.normal_()

    graph.replay()

    torch.testing.assert_close(out, int4_linear(x, weight))
