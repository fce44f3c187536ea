import pytest
import torch

pytest.importorskip("triton")

from raydix.kernels.dense.summands import add_up
from raydix.kernels.fp8.form import IN_BLOCKS, KERNEL_BLOCKS, Block
from raydix.kernels.fp8.scaled_product import scaled_summands
from raydix.kernels.fp8.scaled_tiles import LINEAR_TILES, LinearTiles, ScaledTile
from raydix.kernels.reference.scaled_linear import scaled_linear
from raydix.kernels.weights.scaled_weight import ScaledWeight
from raydix.kernels.weights.weight import Weight
from tests.kernels.fp8.blocks import random_inputs, random_weight


def multiply(
    x: torch.Tensor, weight: ScaledWeight, tiles: LinearTiles | None = None
) -> torch.Tensor:
    out = scaled_summands(x, weight, tiles)
    return out if out.dim() == 2 else add_up(out, x.dtype)


def small_tiles(rows: int, halves: int, programs: int, *, is_rounded_first: bool) -> LinearTiles:
    return LinearTiles(
        max_tokens=1,
        tile=ScaledTile(rows=rows, columns=64, num_warps=4, num_stages=2, halves=halves),
        programs_per_sm=programs,
        max_summands=8,
        is_rounded_first=is_rounded_first,
    )


TILES = [
    small_tiles(16, 1, 1, is_rounded_first=False),
    small_tiles(16, 1, 8, is_rounded_first=True),
    small_tiles(64, 2, 8, is_rounded_first=True),
    small_tiles(64, 1, 1, is_rounded_first=False),
]


@pytest.mark.parametrize("tiles", TILES)
@pytest.mark.parametrize("block", KERNEL_BLOCKS)
@pytest.mark.parametrize("shape", [(1, 128, 128), (20, 320, 400), (70, 150, 48)])
def test_products_match_the_twin(
    device: torch.device, shape: tuple[int, int, int], block: Block, tiles: LinearTiles
) -> None:
    tokens, outputs, inputs = shape
    weight = random_weight(outputs, inputs, block=block, device=device, bias=torch.float32)
    x = random_inputs(tokens, inputs, device=device)

    out = multiply(x, weight, tiles)

    # Tensor cores add up products of float8 with fewer bits than float32 has.
    limit = 1e-3 if out.is_cuda else 1e-6
    expected = scaled_linear(x, weight)
    assert (out - expected).norm() / expected.norm() < limit


def test_inputs_are_divided_whatever_the_tokens(device: torch.device) -> None:
    """The sums of a row are the same whatever is beside it."""
    weight = random_weight(128, 1024, block=IN_BLOCKS, device=device)
    x = random_inputs(20, 1024, device=device)
    tiles = small_tiles(16, 1, 8, is_rounded_first=False)

    whole, single = scaled_summands(x, weight, tiles), scaled_summands(x[3:4], weight, tiles)

    assert len(whole) > 1
    assert torch.equal(single, whole[:, 3:4])


def test_two_scales_that_change_places_are_seen(device: torch.device) -> None:
    weight = random_weight(128, 256, block=IN_BLOCKS, device=device)
    swapped = ScaledWeight(weight.numbers, weight.scales_BD.flip(1), IN_BLOCKS)
    x = random_inputs(4, 256, device=device)

    with pytest.raises(AssertionError):
        torch.testing.assert_close(
            multiply(x, swapped), scaled_linear(x, weight), atol=2e-2, rtol=1e-2
        )


def test_no_tokens_give_no_rows(device: torch.device) -> None:
    weight = random_weight(64, 128, block=IN_BLOCKS, device=device)
    assert multiply(torch.zeros(0, 128, device=device), weight).shape == (0, 64)


@pytest.mark.gpu
@pytest.mark.parametrize("block", KERNEL_BLOCKS)
@pytest.mark.parametrize("tiles", LINEAR_TILES, ids=str)
@pytest.mark.parametrize("tokens", [1, 64, 300, 2000])
@pytest.mark.parametrize(("outputs", "inputs"), [(576, 7168), (7168, 2048), (520, 1040)])
def test_every_variant_is_as_exact_as_bfloat16_allows(
    outputs: int, inputs: int, tokens: int, tiles: LinearTiles, block: Block
) -> None:
    if tokens > 300 and tiles.tile.rows < 64:
        pytest.skip("few rows a tile, and many tokens")
    torch.manual_seed(0)
    weight = random_weight(outputs, inputs, block=block, device=torch.device("cuda"))
    x = torch.randn(tokens, inputs, device="cuda", dtype=torch.bfloat16)

    out = multiply(x, weight, tiles)

    expected = scaled_linear(x.float(), weight)
    assert out.dtype == torch.bfloat16
    assert (out.float() - expected).norm() / expected.norm() < 5e-3


@pytest.mark.gpu
def test_a_captured_graph_follows_its_inputs() -> None:
    weight = random_weight(576, 1024, block=IN_BLOCKS, device=torch.device("cuda"))
    x = torch.randn(24, 1024, device="cuda", dtype=torch.bfloat16)
    multiply(x, weight)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = multiply(x, weight)
    x.normal_()

    graph.replay()

    assert torch.equal(out, multiply(x, weight))


def test_bad_inputs_are_refused() -> None:
    cpu = torch.device("cpu")
    weight, x = random_weight(64, 128, block=IN_BLOCKS, device=cpu), torch.zeros(3, 128)
    floats = ScaledWeight(Weight(torch.zeros(64, 128), None), weight.scales_BD, IN_BLOCKS)
    for bad_x, bad_weight in [
        (x.double(), weight),
        (torch.zeros(3, 120), random_weight(64, 120, block=IN_BLOCKS, device=cpu)),
        (torch.zeros(3, 64), weight),
        (x, floats),
        (x, ScaledWeight(weight.numbers, weight.scales_BD, (64, 128))),
        (x, ScaledWeight(weight.numbers, weight.scales_BD.double(), IN_BLOCKS)),
    ]:
        with pytest.raises(ValueError, match="expected"):
            scaled_summands(bad_x, bad_weight)
