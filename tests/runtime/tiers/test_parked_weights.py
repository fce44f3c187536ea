"""Weights in memory that goes and comes back, without anybody who holds them noticing."""

import pytest
import torch
from torch import Tensor, nn

from raydix.errors import AccountingError, ConfigError
from raydix.runtime.tiers import parked_weights
from raydix.runtime.tiers.memory_region import HostRegion
from raydix.runtime.tiers.parked_weights import ParkedWeights

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


class Model(nn.Module):
    def __init__(self, device: str) -> None:
        super().__init__()
        generator = torch.Generator(device).manual_seed(3)
        for name, shape in {"wide": (64, 48), "small": (3,), "odd": (5, 7)}.items():
            drawn = torch.randn(shape, generator=generator, device=device).to(torch.bfloat16)
            self.register_parameter(name, nn.Parameter(drawn, requires_grad=False))
        whole = torch.arange(40, device=device, dtype=torch.float32).view(10, 4)
        self.rows = nn.Parameter(whole[2:7], requires_grad=False)
        self.columns = nn.Parameter(whole.t()[1:3], requires_grad=False)
        self.register_buffer("numbers", torch.arange(9, dtype=torch.uint8, device=device))
        self.tied = self.wide

    def all(self) -> list[Tensor]:
        return [*self.parameters(), *self.buffers()]


def content(tensors: list[Tensor]) -> list[object]:
    return [(each.tolist(), each.shape, each.stride(), each.dtype) for each in tensors]


@pytest.mark.parametrize("device", DEVICES)
def test_weights_are_the_same_and_where_they_were_after_each_return(device: str) -> None:
    model = Model(device)
    before = content(model.all())
    weights = ParkedWeights(model.all(), torch.device(device))
    assert content(model.all()) == before
    held, addresses = weights.held_bytes, weights.addresses
    assert held >= sum(each.nbytes for each in (model.wide, model.rows, model.numbers))

    for _ in range(3):
        weights.park()
        weights.park()
        assert weights.held_bytes == 0
        weights.bring_back()
        weights.bring_back()
        assert content(model.all()) == before
        assert weights.held_bytes == held
        assert weights.addresses == addresses


@pytest.mark.parametrize("device", DEVICES)
def test_what_changes_while_they_are_there_is_what_comes_back(device: str) -> None:
    model = Model(device)
    weights = ParkedWeights(model.all(), torch.device(device))
    for number in (1.0, 2.0):
        model.wide.fill_(number)
        weights.park()
        weights.bring_back()
        assert bool((model.tied == number).all())


@pytest.mark.parametrize("device", DEVICES)
def test_parts_of_one_storage_stay_parts_of_one(device: str) -> None:
    model = Model(device)
    ParkedWeights(model.all(), torch.device(device))
    model.rows[0, 1] = 100.0
    assert float(model.columns[0, 2]) == 100.0


def test_many_storages_are_in_several_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parked_weights, "_PIECE_BYTES", 3000)
    tensors = [torch.full((size,), float(size)) for size in (700, 40, 50, 2000, 3, 4)]
    weights = ParkedWeights(tensors, torch.device("cpu"))
    assert len(weights.regions) == 4
    weights.park()
    weights.bring_back()
    for size, tensor in zip((700, 40, 50, 2000, 3, 4), tensors, strict=True):
        assert tensor.tolist() == [float(size)] * size


def test_a_view_that_somebody_else_holds_is_found() -> None:
    """It would go on reading where the weights have been."""
    model = Model("cpu")
    view = model.odd[2]
    with pytest.raises(AccountingError, match="somebody holds a view"):
        ParkedWeights(model.all(), torch.device("cpu"))
    assert view.shape == (7,)


def test_memory_that_is_others_as_well_is_left_alone() -> None:
    others = torch.frombuffer(bytearray(32), dtype=torch.float32)
    weights = ParkedWeights([others, torch.ones(8)], torch.device("cpu"))
    address = others.data_ptr()
    weights.park()
    assert others.data_ptr() == address
    assert others.tolist() == [0.0] * 8
    assert weights.held_bytes == 0
    weights.bring_back()


def test_tensors_of_another_device_are_left_alone() -> None:
    weights = ParkedWeights([torch.ones(3, device="meta")], torch.device("cpu"))
    assert weights.held_bytes == 0
    assert weights.regions == []


def test_without_room_some_come_and_the_others_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parked_weights, "_PIECE_BYTES", 512)
    tensors = [torch.full((100,), float(number)) for number in range(3)]
    weights = ParkedWeights(tensors, torch.device("cpu"))
    weights.park()
    taken = []

    def take_one(region: HostRegion) -> None:
        if taken:
            raise torch.OutOfMemoryError("CUDA out of memory")
        taken.append(region)
        region.is_taken = True

    with monkeypatch.context() as patch:
        patch.setattr(HostRegion, "take_again", take_one)
        with pytest.raises(ConfigError, match="no room for 1024 bytes of weights"):
            weights.bring_back()
    assert weights.held_bytes == 512

    weights.bring_back()
    assert [tensor.tolist() for tensor in tensors] == [[float(each)] * 100 for each in range(3)]
