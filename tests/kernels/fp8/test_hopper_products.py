import pytest
import torch

pytest.importorskip("triton")

from raydix.kernels.dense.summands import add_up
from raydix.kernels.fp8 import few_hopper, library_product
from raydix.kernels.fp8.form import IN_BLOCKS, KERNEL_BLOCKS, Block
from raydix.kernels.fp8.scaled_product import scaled_summands
from raydix.kernels.reference.scaled_linear import scaled_linear
from raydix.kernels.weights.scaled_weight import ScaledWeight
from tests.kernels.fp8.blocks import random_weight

pytestmark = pytest.mark.gpu


def make(
    tokens: int, size: tuple[int, int], block: Block, bias: torch.dtype | None = None
) -> tuple[torch.Tensor, ScaledWeight]:
    """Inputs in bf16, and a matrix whose scales all differ."""
    torch.manual_seed(0)
    weight = random_weight(*size, block=block, device=torch.device("cuda"), bias=bias)
    return torch.randn(tokens, size[1], device="cuda", dtype=torch.bfloat16), weight


def assert_near(x: torch.Tensor, weight: ScaledWeight) -> None:
    """What is chosen for so many tokens is as near to the twin as bf16 allows."""
    out = scaled_summands(x, weight)
    total = (out if out.dim() == 2 else add_up(out, x.dtype)).float()
    expected = scaled_linear(x.float(), weight)
    assert (total - expected).norm() / expected.norm() < 5e-3


@pytest.mark.parametrize("block", KERNEL_BLOCKS)
@pytest.mark.parametrize("bias", [None, torch.bfloat16])
@pytest.mark.parametrize("size", [(576, 7168), (7168, 2048), (520, 1040)])
def test_few_tokens_match_the_twin(
    size: tuple[int, int], bias: torch.dtype | None, block: Block
) -> None:
    for tokens in (1, 13, 16, 17, 32):
        x, weight = make(tokens, size, block, bias)
        assert few_hopper.fits(x, weight)
        assert_near(x, weight)


def test_a_row_of_few_is_the_same_whatever_is_beside_it() -> None:
    x, weight = make(16, (576, 7168), IN_BLOCKS)

    out, alone = scaled_summands(x, weight), scaled_summands(x[3:4], weight)

    assert torch.equal(out[..., 3:4, :], alone)


@pytest.mark.parametrize("tokens", [129, 1000, 2048])
@pytest.mark.parametrize("size", [(5120, 2048), (7168, 1536)])
def test_many_tokens_match_the_twin(size: tuple[int, int], tokens: int) -> None:
    x, weight = make(tokens, size, IN_BLOCKS)
    assert library_product.fits(x, weight)
    assert_near(x, weight)


def test_the_library_is_not_asked_for_what_it_does_not_know() -> None:
    for tokens, size, block, bias in [
        (64, (5120, 2048), IN_BLOCKS, None),
        (1000, (576, 2048), IN_BLOCKS, None),
        (1000, (5120, 2176), IN_BLOCKS, None),
        (1000, (5120, 2048), KERNEL_BLOCKS[1], None),
        (1000, (5120, 2048), IN_BLOCKS, torch.bfloat16),
    ]:
        x, weight = make(tokens, size, block, bias)
        assert not library_product.fits(x, weight)
        assert_near(x, weight)
