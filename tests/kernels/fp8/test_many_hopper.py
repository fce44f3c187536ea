"""Experts of many rows on Hopper give what Triton's kernels give, whatever tiles they have."""

import pytest
import torch

pytest.importorskip("triton")

from raydix.kernels.dense.glu_form import ClampedGlu, GluForm, SiluGlu
from raydix.kernels.fp8 import many_hopper
from raydix.kernels.fp8.form import IN_BLOCKS, KERNEL_BLOCKS, Block
from raydix.kernels.fp8.scaled_experts import scaled_experts
from raydix.kernels.fp8.scaled_tiles import EXPERT_TILES
from raydix.kernels.moe import expert_inputs
from raydix.kernels.reference import scaled_linear as reference
from raydix.kernels.weights.scaled_weight import ScaledWeight
from tests.kernels.fp8.blocks import random_weight

pytestmark = pytest.mark.gpu
SHAPES = [(301, 256, 128, 4, 2), (1200, 1024, 384, 3, 3), (3000, 640, 256, 4, 1)]
"""Tokens, hidden and intermediate sizes, experts, choices. Of 640 outputs half a tile is none."""
CHOICES = ["random", "one expert", "none for some", "none"]

Layer = tuple[torch.Tensor, ScaledWeight, ScaledWeight, torch.Tensor, torch.Tensor]


def make(
    shape: tuple[int, int, int, int, int], block: Block = IN_BLOCKS, choice: str = "random"
) -> Layer:
    """The tensors x, gate_up, down, weights and expert ids."""
    tokens, hidden, intermediate, experts, choices = shape
    torch.manual_seed(0)
    device = torch.device("cuda")
    gate_up = random_weight(experts, 2 * intermediate, hidden, block=block, device=device)
    down = random_weight(experts, hidden, intermediate, block=block, device=device, seed=1)
    x = torch.randn(tokens, hidden, dtype=torch.bfloat16, device=device)
    weights = torch.rand(tokens, choices, device=device)
    ids = torch.rand(tokens, experts, device=device).argsort(1)[:, :choices].int().contiguous()
    match choice:
        case "one expert":
            ids.fill_(1)
        case "none for some":
            ids[::2, 0] = -1
            ids[ids == experts - 1] = experts + 5
        case "none":
            ids.fill_(-1)
    assert many_hopper.fits(x, gate_up, down, ids.numel())
    return x, gate_up, down, weights, ids


def of_triton(layer: Layer, form: GluForm) -> torch.Tensor:
    """What the kernels for any GPU give."""
    return scaled_experts(*layer, form=form, tiles=EXPERT_TILES[-1])


@pytest.mark.parametrize("form", [SiluGlu(), ClampedGlu(slope=1.702, limit=0.5)])
@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("shape", SHAPES)
def test_bits_are_those_of_the_kernels_for_any_gpu(
    shape: tuple[int, int, int, int, int], choice: str, form: GluForm
) -> None:
    layer = make(shape, choice=choice)

    out = scaled_experts(*layer, form=form)

    assert torch.equal(out, of_triton(layer, form))


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("shape", SHAPES)
def test_scales_of_outputs_multiply_at_the_end(
    shape: tuple[int, int, int, int, int], choice: str
) -> None:
    layer = make(shape, KERNEL_BLOCKS[1], choice)

    out = scaled_experts(*layer, form=SiluGlu()).float()

    expected = of_triton(layer, SiluGlu()).float()
    assert (out - expected).norm() <= 1e-3 * expected.norm()


def test_experts_too_large_for_l2_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = make(SHAPES[1])
    out = scaled_experts(*layer, form=SiluGlu())

    monkeypatch.setattr(expert_inputs, "_LARGE_EXPERT_BYTES", 1)

    assert torch.equal(scaled_experts(*layer, form=SiluGlu()), out)


@pytest.mark.parametrize("rows", [127, 128, 129, 192, 193, 256])
def test_the_last_tile_of_an_expert_may_end_anywhere(rows: int) -> None:
    layer = make((rows, 256, 128, 2, 1), choice="one expert")

    out = scaled_experts(*layer, form=SiluGlu())

    assert torch.equal(out, of_triton(layer, SiluGlu()))


def test_an_answer_is_the_same_whoever_is_beside_it() -> None:
    x, gate_up, down, weights, ids = make(SHAPES[1])
    part = slice(100, 700)

    out = scaled_experts(x, gate_up, down, weights, ids, form=SiluGlu())
    alone = scaled_experts(x[part], gate_up, down, weights[part], ids[part], form=SiluGlu())

    assert torch.equal(out[part], alone)


def test_it_is_as_near_to_the_twin_as_bfloat16_allows() -> None:
    layer = make(SHAPES[1])

    out = scaled_experts(*layer, form=SiluGlu()).float()

    expected = reference.scaled_experts(*layer, form=SiluGlu()).float()
    assert (out - expected).norm() / expected.norm() < 2e-2


@pytest.mark.parametrize("which", ["gate_up", "down"])
def test_two_scales_that_change_places_are_seen(which: str) -> None:
    x, gate_up, down, weights, ids = layer = make(SHAPES[1])
    swapped = {"gate_up": gate_up, "down": down}
    swapped[which] = ScaledWeight(
        swapped[which].numbers, swapped[which].scales_BD.flip(2).contiguous(), IN_BLOCKS
    )

    out = scaled_experts(x, *swapped.values(), weights, ids, form=SiluGlu())

    expected = of_triton(layer, SiluGlu()).float()
    assert (out.float() - expected).norm() / expected.norm() > 1e-2


def test_few_rows_and_other_sizes_are_left_to_others() -> None:
    x, gate_up, down, _, _ = make(SHAPES[0])
    assert not many_hopper.fits(x, gate_up, down, 4 * many_hopper.MIN_MEAN_ROWS)
    assert not many_hopper.fits(x.float(), gate_up, down, 1000)

    device = torch.device("cuda")
    narrow = random_weight(4, 256, 192, block=KERNEL_BLOCKS[1], device=device)
    assert not many_hopper.fits(x[:, :192], gate_up, narrow, 1000)


def test_a_captured_graph_follows_its_inputs() -> None:
    x, gate_up, down, weights, ids = make(SHAPES[0])
    scaled_experts(x, gate_up, down, weights, ids, form=SiluGlu())
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = scaled_experts(x, gate_up, down, weights, ids, form=SiluGlu())
    x.normal_()
    ids.copy_(ids.flip(0))

    graph.replay()

    expected = scaled_experts(x, gate_up, down, weights, ids, form=SiluGlu())
    assert torch.equal(out, expected)
