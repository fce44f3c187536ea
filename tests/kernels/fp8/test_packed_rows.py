import pytest
import torch

pytest.importorskip("triton")

from raydix.kernels.fp8.packed_rows import pack_rows, restore_rows
from raydix.kernels.reference import packed_rows as reference


@pytest.mark.parametrize("shape", [(1, 128), (9, 320), (70, 48), (30, 1100)])
def test_rows_are_packed_and_restored_as_the_twins_do_it(
    device: torch.device, dtype: torch.dtype, shape: tuple[int, int]
) -> None:
    torch.manual_seed(0)
    x = torch.randn(*shape, device=device, dtype=dtype)
    x *= torch.logspace(-33, 33, shape[0], device=device, dtype=dtype)[:, None]
    x[-1, :3] = 0.0
    expected = reference.restore_rows(reference.pack_rows(x), shape[1], dtype)

    packed = pack_rows(x)

    assert packed.shape == reference.pack_rows(x).shape
    assert torch.equal(reference.restore_rows(packed, shape[1], dtype), expected)
    assert torch.equal(restore_rows(packed, shape[1], dtype), expected)


def test_no_rows_are_packed_and_restored_as_none(device: torch.device) -> None:
    packed = pack_rows(torch.zeros(0, 320, device=device))

    assert restore_rows(packed, 320, torch.float32).shape == (0, 320)


def test_bad_rows_are_refused(device: torch.device) -> None:
    with pytest.raises(ValueError, match="expected bfloat16 or float32"):
        pack_rows(torch.zeros(3, 128, dtype=torch.float16, device=device))
    for rows in (
        torch.zeros(3, 144, device=device),
        torch.zeros(3, 128, dtype=torch.uint8, device=device),
        torch.zeros(144, 144, dtype=torch.uint8, device=device).T[:3],
    ):
        with pytest.raises(ValueError, match=r"expected packed ones, uint8 \[N, 144\]"):
            restore_rows(rows, 128, torch.float32)
