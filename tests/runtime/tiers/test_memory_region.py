"""Memory that is given back and taken again: where it is then, and that it really goes."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from raydix.runtime.tiers.memory_region import (
    HostRegion,
    MemoryRegion,
    MovingRegion,
    definite,
    make_region,
)

CPU = torch.device("cpu")
MIB = 1 << 20
Make = Callable[[int], MemoryRegion]


def _device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())


KINDS: dict[str, tuple[bool, Make]] = {
    "host": (True, HostRegion),
    "moving": (False, lambda num_bytes: MovingRegion(num_bytes, CPU)),
    "cuda": (True, lambda num_bytes: make_region(num_bytes, _device())),
    "cuda, moving": (False, lambda num_bytes: MovingRegion(num_bytes, _device())),
}


@pytest.fixture(
    params=[pytest.param(kind, marks=[pytest.mark.gpu] if "cuda" in kind else []) for kind in KINDS]
)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_each_tensor_of_a_region_finds_it_again(kind: str) -> None:
    keeps_place, make = KINDS[kind]
    region = make(5 * MIB + 3)
    assert region.keeps_place is keeps_place
    assert region.bytes.shape == (5 * MIB + 3,)
    assert region.is_taken
    view = region.bytes[MIB : 2 * MIB].view(torch.bfloat16).view(512, -1)
    address = view.data_ptr()

    for number in range(3):
        view.fill_(number)
        assert bool((region.bytes[MIB : 2 * MIB].view(torch.bfloat16) == number).all())
        region.give_back()
        assert not region.is_taken
        region.take_again()
        assert region.is_taken
        if keeps_place:
            assert view.data_ptr() == address
    view.fill_(7)
    assert float(region.bytes[MIB : 2 * MIB].view(torch.bfloat16).float().sum()) == 7 * MIB / 2


def test_giving_back_twice_and_taking_twice_change_nothing(kind: str) -> None:
    region = KINDS[kind][1](MIB)
    region.take_again()
    region.bytes.fill_(5)
    region.take_again()
    assert bool((region.bytes == 5).all())
    region.give_back()
    region.give_back()
    assert not region.is_taken
    region.take_again()
    region.bytes.fill_(6)
    assert bool((region.bytes == 6).all())


def test_the_first_byte_is_aligned_as_torch_aligns_tensors(kind: str) -> None:
    assert KINDS[kind][1](MIB).bytes.data_ptr() % 64 == 0


def test_a_tensor_may_outlive_its_region(kind: str) -> None:
    tensor = KINDS[kind][1](MIB).bytes[:9]
    tensor.fill_(3)
    assert tensor.tolist() == [3] * 9


def test_a_device_without_an_index_is_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread has another one, or none, and cannot be put on it without that."""
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    assert definite(torch.device("cuda")) == torch.device("cuda", 3)
    assert definite(torch.device("cuda", 1)) == torch.device("cuda", 1)
    assert definite(CPU) == CPU


def test_what_the_host_gives_back_goes_to_the_system() -> None:
    def resident_bytes() -> int:
        pages = Path("/proc/self/statm").read_text().split()[1]
        return 4096 * int(pages)

    region = HostRegion(256 * MIB)
    region.bytes.fill_(1)
    taken = resident_bytes()
    region.give_back()
    assert taken - resident_bytes() > 200 * MIB


@pytest.mark.gpu
def test_what_a_gpu_gives_back_others_may_have() -> None:
    def free_bytes() -> int:
        torch.cuda.synchronize()
        return int(torch.cuda.mem_get_info()[0])

    region = make_region(1024 * MIB, _device())
    region.bytes.fill_(1)
    assert region.mapped_bytes == 1024 * MIB
    taken = free_bytes()
    region.give_back()
    assert region.mapped_bytes == 0
    assert free_bytes() - taken >= 1024 * MIB
    region.take_again()
    assert free_bytes() - taken < 16 * MIB

    del region
    assert free_bytes() - taken >= 1024 * MIB


@pytest.mark.gpu
def test_more_than_the_gpu_has_is_no_memory() -> None:
    with pytest.raises(torch.OutOfMemoryError, match="are wanted at once"):
        make_region(torch.cuda.mem_get_info()[1] + (1 << 30), _device())


@pytest.mark.gpu
def test_torch_gives_up_what_it_keeps_for_later_if_a_region_needs_it() -> None:
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info()
    kept = torch.empty(int(free * 0.7), dtype=torch.uint8, device="cuda")
    del kept
    region = make_region(int(free * 0.7), _device())
    assert region.is_taken


@pytest.mark.gpu
def test_graphs_captured_before_read_what_is_there_afterwards() -> None:
    region = make_region(64 * MIB, _device())
    matrix = region.bytes.view(torch.bfloat16)[: 1024 * 1024].view(1024, 1024)
    matrix.fill_(1)
    x = torch.ones(16, 1024, dtype=torch.bfloat16, device="cuda")
    _ = x @ matrix
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x @ matrix

    for number in (2.0, 3.0):
        torch.cuda.synchronize()
        region.give_back()
        # Somebody else has what was given back.
        other = torch.full((64 * MIB,), 99, dtype=torch.uint8, device="cuda")
        region.take_again()
        matrix.fill_(number)
        graph.replay()
        assert bool((y == number * 1024).all())
        assert bool((other == 99).all())
        del other
