import pytest
import torch

from raydix.kernels.fp8.form import packed_bytes
from raydix.kernels.reference.packed_rows import pack_rows, restore_rows
from raydix.kernels.reference.scaled_linear import round_inputs

SIZES = [8, 128, 320, 2880]
DTYPES = [torch.float32, torch.bfloat16]


def draw(num_rows: int, size: int, dtype: torch.dtype) -> torch.Tensor:
    """Rows of all magnitudes; some numbers of each are far smaller than others."""
    generator = torch.Generator().manual_seed(size)
    rows = torch.randn(num_rows, size, generator=generator)
    rows *= torch.logspace(-6, 0, size)
    return (rows * torch.logspace(-20, 20, num_rows)[:, None]).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", SIZES)
def test_rows_come_back_as_their_numbers_times_their_scales(size: int, dtype: torch.dtype) -> None:
    x = draw(9, size, dtype)

    packed = pack_rows(x)

    assert packed.shape == (9, packed_bytes(size))
    numbers, scales = round_inputs(x, 128)
    expected = numbers.float() * scales.repeat_interleave(128, dim=1)[:, :size]
    assert torch.equal(restore_rows(packed, size, torch.float32), expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", SIZES)
def test_rows_that_have_travelled_are_not_rounded_again(size: int, dtype: torch.dtype) -> None:
    """Experts in float8 round what they are given: of restored rows nothing changes."""
    x = draw(300, size, dtype)
    once = restore_rows(pack_rows(x), size, dtype)

    assert not torch.equal(once, x)
    assert torch.equal(once.float(), restore_rows(pack_rows(x), size, torch.float32))
    assert torch.equal(restore_rows(pack_rows(once), size, dtype), once)


@pytest.mark.parametrize("size", [2048, 2880, 7168])
def test_packed_rows_have_little_more_than_half_of_the_bytes(size: int) -> None:
    assert packed_bytes(size) % 16 == 0
    assert size < packed_bytes(size) < 0.52 * 2 * size


def test_no_rows_are_packed_and_restored_as_none() -> None:
    assert restore_rows(pack_rows(torch.zeros(0, 320)), 320, torch.float32).shape == (0, 320)
