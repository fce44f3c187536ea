import pytest
import torch

pytest.importorskip("triton")

from raydix.kernels.kv_cache.latent_write import write_latent
from raydix.kernels.reference import latent_attention as reference

DIM, PAGE, LAYER = 40, 4, 1


@pytest.mark.parametrize("cell_dtype", [torch.int32, torch.int64])
def test_latents_land_in_their_cells_and_nowhere_else(
    device: torch.device, dtype: torch.dtype, cell_dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    pool = torch.randn(6, 2, PAGE, DIM).to(device, dtype)
    # A slice of a projection's output: contiguous in D alone.
    latent = torch.randn(5, 2 * DIM).to(device, dtype)[:, DIM:]
    cells = torch.tensor([5, 23, 11, 8, 4], device=device)
    expected = pool.clone()
    reference.write_latent(latent, expected, LAYER, cells)

    write_latent(latent, pool, LAYER, cells.to(cell_dtype))

    torch.testing.assert_close(pool, expected, atol=0, rtol=0)


def test_padded_tokens_write_nothing(device: torch.device) -> None:
    pool = torch.full((3, 2, PAGE, DIM), torch.nan, device=device)

    write_latent(
        torch.ones(2, DIM, device=device), pool, LAYER, torch.tensor([-1, -1], device=device)
    )

    assert pool.isnan().all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"latent_TD": torch.zeros(2, DIM, dtype=torch.bfloat16)}, "Latents are"),
        ({"pool_PLSD": torch.zeros(3, PAGE, DIM)}, "expected contiguous"),
        ({"pool_PLSD": torch.zeros(3, 1, PAGE, DIM)}, "Layer 1 is not"),
        ({"cells_T": torch.zeros(3, dtype=torch.int64)}, "The cells"),
    ],
)
def test_impossible_inputs_are_refused(change: dict[str, torch.Tensor], message: str) -> None:
    inputs = {
        "latent_TD": torch.zeros(2, DIM),
        "pool_PLSD": torch.zeros(3, 2, PAGE, DIM),
        "cells_T": torch.zeros(2, dtype=torch.int64),
    } | change

    with pytest.raises(ValueError, match=message):
        write_latent(layer=1, **inputs)  # type: ignore[arg-type]
