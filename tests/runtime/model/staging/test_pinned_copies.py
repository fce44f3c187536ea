import numpy as np
import pytest
import torch

from raydix.runtime.model.staging.pinned_copies import PinnedCopies, PinnedRing

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
MIB = 1 << 20


@pytest.mark.parametrize("device", DEVICES)
def test_columns_arrive_in_order_and_whole(device: str) -> None:
    tables = [
        {"a": np.array([1, -(1 << 40)]), "b": np.empty(0, dtype=np.int64)},
        {"a": np.array([0.25]), "c": np.arange(6, dtype=np.int32).reshape(2, 3)},
    ]

    arrived = PinnedCopies(torch.device(device)).to_device(*tables)

    for own, table in zip(arrived, tables, strict=True):
        assert {tensor.device.type for tensor in own.values()} == {device}
        assert {name: tensor.tolist() for name, tensor in own.items()} == {
            name: column.tolist() for name, column in table.items()
        }


@pytest.mark.parametrize("device", DEVICES)
def test_no_columns_at_all_arrive_too(device: str) -> None:
    copies = PinnedCopies(torch.device(device))
    [arrived] = copies.to_device({"none": np.empty(0, dtype=np.int64)})

    assert arrived["none"].shape == (0,)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "tensor",
    [torch.arange(6, dtype=torch.int32), torch.arange(6.0).view(3, 2), torch.empty(4, 0)],
    ids=lambda tensor: str(tuple(tensor.shape)),
)
def test_results_arrive_in_pinned_memory(tensor: torch.Tensor) -> None:
    arrived = PinnedCopies(torch.device("cuda")).to_host(tensor.to("cuda"))
    torch.cuda.synchronize()

    assert arrived.is_pinned() or not arrived.numel()
    assert torch.equal(arrived, tensor)


@pytest.mark.gpu
def test_columns_and_results_wait_for_no_page() -> None:
    copies = PinnedCopies(torch.device("cuda"))
    on_host = torch.zeros(512 * MIB, dtype=torch.uint8).pin_memory()
    on_device = on_host.to("cuda")
    pages = [(on_device, on_host), (on_host.clone().pin_memory(), on_device.clone())]
    column = np.arange(16_384)
    copies.to_host(copies.to_device({"column": column})[0]["column"])
    streams = [torch.cuda.Stream() for _ in range(2)]
    torch.cuda.synchronize()

    for stream, (target, source) in zip(streams, pages, strict=True):
        with torch.cuda.stream(stream):
            target.copy_(source, non_blocking=True)
    returned = copies.to_host(copies.to_device({"column": column})[0]["column"])
    torch.cuda.current_stream().synchronize()

    assert [stream.query() for stream in streams] == [False, False]
    assert returned.tolist() == column.tolist()
    torch.cuda.synchronize()


@pytest.mark.gpu
def test_memory_is_not_reused_while_it_is_read() -> None:
    copies = PinnedCopies(torch.device("cuda"))
    torch.cuda._sleep(20_000_000)

    arrived = [copies.to_device({"column": np.full(1000, number)})[0] for number in range(50)]

    assert [own["column"].unique().tolist() for own in arrived] == [
        [number] for number in range(50)
    ]


@pytest.mark.multi_gpu
def test_results_arrive_in_memory_that_was_pinned_for_another_device() -> None:
    """Pinned memory is handed out again, whichever device was current when it was pinned."""
    with torch.cuda.device(0):
        earlier = torch.full((4096,), -1, dtype=torch.int64).pin_memory()
    del earlier

    with torch.cuda.device(1):
        tensor = torch.arange(4096, device="cuda")
        arrived = PinnedCopies(torch.device("cuda", 1)).to_host(tensor)
        torch.cuda.synchronize()

    assert arrived.tolist() == list(range(4096))


@pytest.mark.parametrize("device", DEVICES)
def test_a_ring_lends_columns_up_to_its_size(device: str) -> None:
    ring = PinnedRing(4, torch.device(device))
    seen = []

    for number in range(40):
        with ring.lend(np.arange(number, number + number % 5)) as lent:
            seen.append(lent + 0)

    expected = [list(range(number, number + number % 5)) for number in range(40)]
    assert [each.tolist() for each in seen] == expected
    with (
        pytest.raises(ValueError, match="has 5 numbers; expected at most 4"),
        ring.lend(np.arange(5)),
    ):
        pass
