"""Experts as bytes: what comes out of a seat goes into another as it was."""

import pytest
import torch

from raydix.runtime.model.experts import expert_bytes as module
from raydix.runtime.model.experts.expert_bytes import expert_bytes, make_copier, pieces

SHAPES = [(6, 5), (5, 3), (7,)]


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param)


def _seats(device: torch.device, dtype: torch.dtype) -> list[list[torch.Tensor]]:
    """Seats 0 to 2 as a bank has them: views of stacked tensors."""
    torch.manual_seed(0)
    stacked = [torch.randn(3, *shape, device=device).to(dtype) for shape in SHAPES]
    return [[tensor[seat] for tensor in stacked] for seat in range(3)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("half_bytes", [4 << 20, 16])
def test_an_expert_passes_through_host_memory_bit_by_bit(
    device: torch.device, dtype: torch.dtype, half_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_HALF_BYTES", half_bytes)
    seats = _seats(device, dtype)
    before = [[tensor.clone() for tensor in seat] for seat in seats]
    copier = make_copier(device)
    expert_B = torch.zeros(expert_bytes(seats[0]), dtype=torch.uint8)

    # The seats were drawn on another stream than the copier's.
    copier.wait_for_device()
    copier.from_seat(seats[0], expert_B)
    copier.to_seat(expert_B, seats[2])

    for seat, expected in zip(seats, [before[0], before[1], before[0]], strict=True):
        assert all(map(torch.equal, seat, expected))


def test_tensors_of_an_expert_lie_apart_and_aligned() -> None:
    seat = _seats(torch.device("cpu"), torch.float32)[0]
    expert_B = torch.zeros(expert_bytes(seat), dtype=torch.uint8)
    runs = list(pieces(expert_B, seat, 64))

    assert len(expert_B) == 3 * 256
    assert max(len(stored) for stored, _ in runs) == 64
    assert sum(len(held) for _, held in runs) == sum(tensor.nbytes for tensor in seat)
    starts = [stored.data_ptr() - expert_B.data_ptr() for stored, _ in runs]
    assert starts == [0, 64, 256, 512]
