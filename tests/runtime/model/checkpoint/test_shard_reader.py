import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import xxhash
from safetensors.torch import load_file, save_file
from torch import Tensor

from raydix.runtime.model.checkpoint import shard_reader
from raydix.runtime.model.checkpoint.shard_reader import read_tensors
from raydix.runtime.model.checkpoint.stored_tensors import list_tensors
from raydix.runtime.model.families.table import Family
from raydix.runtime.model.formats.stored_tensor import StoredTensor
from tests.checkpoints import make_checkpoint

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
ODD = {
    "scalar": torch.tensor(3.5),
    "empty": torch.empty(0, 4),
    "flags": torch.tensor([True, False, True]),
    "bytes": torch.arange(5, dtype=torch.uint8),
    "halves": torch.randn(3, 5).bfloat16(),
}


def bytes_of(tensor: Tensor) -> bytes:
    return tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every tensor of some size takes several pieces, and few fit ahead."""
    monkeypatch.setattr(shard_reader, "_PIECE_BYTES", 1000)
    monkeypatch.setattr(shard_reader, "_AHEAD_BYTES", 9000)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("family", Family)
@pytest.mark.usefixtures("small_pieces")
def test_tensors_of_each_family_are_what_the_format_says(
    family: Family, device: str, tmp_path: Path
) -> None:
    folder = make_checkpoint(tmp_path / "model", family, seed=1, max_shard_size="40KB")
    for path in sorted(folder.glob("*.safetensors")):
        expected = load_file(path)

        read = list(read_tensors(list_tensors(path), torch.device(device)))

        assert {each.stored.name for each in read} == set(expected)
        for each in read:
            whole = expected[each.stored.name]
            assert each.tensor.device.type == device
            assert each.tensor.dtype == whole.dtype
            assert torch.equal(each.tensor.cpu(), whole)
            assert each.digest == xxhash.xxh3_128_digest(bytes_of(whole))


@pytest.mark.parametrize("device", DEVICES)
def test_tensors_of_odd_shapes_and_dtypes_are_read(device: str, tmp_path: Path) -> None:
    save_file(ODD, tmp_path / "odd.safetensors")

    read = read_tensors(list_tensors(tmp_path / "odd.safetensors"), torch.device(device))

    for each in read:
        whole = ODD[each.stored.name]
        assert (each.tensor.shape, each.tensor.dtype) == (whole.shape, whole.dtype)
        assert torch.equal(each.tensor.cpu(), whole)


def test_tensors_come_in_the_order_of_their_bytes(tmp_path: Path) -> None:
    save_file({f"t{n}": torch.full((n + 1,), float(n)) for n in range(40)}, tmp_path / "f")
    listed = list_tensors(tmp_path / "f")

    assert [each.offset for each in listed] == sorted(each.offset for each in listed)
    read = list(read_tensors(listed, torch.device("cpu")))
    assert [each.stored for each in read] == listed


def test_a_tensor_may_begin_at_any_byte(tmp_path: Path) -> None:
    header = json.dumps(
        {
            "flag": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},
            "halves": {"dtype": "BF16", "shape": [2], "data_offsets": [1, 5]},
        }
    ).encode()
    values = bytes_of(torch.tensor([1.0, 2.0]).bfloat16())
    (tmp_path / "f").write_bytes(len(header).to_bytes(8, "little") + header + b"!" + values)

    _, halves = read_tensors(list_tensors(tmp_path / "f"), torch.device("cpu"))

    assert halves.tensor.tolist() == [1.0, 2.0]


class Size(int):
    """A number of bytes that notes how often it is added to others."""

    num_added = 0

    def __radd__(self, other: int) -> int:
        Size.num_added += 1
        return other + int(self)


def test_a_tensor_costs_the_same_however_many_are_ahead(tmp_path: Path) -> None:
    save_file({f"t{n}": torch.zeros(1) for n in range(100)}, tmp_path / "f")
    listed = [
        replace(each, num_bytes=Size(each.num_bytes)) for each in list_tensors(tmp_path / "f")
    ]

    list(read_tensors(listed, torch.device("cpu")))

    assert 0 < Size.num_added <= 3 * len(listed)


@pytest.mark.usefixtures("small_pieces")
def test_no_more_is_read_ahead_than_has_room(tmp_path: Path) -> None:
    path = tmp_path / "f"
    save_file({f"t{n}": torch.zeros(1000) for n in range(20)}, path)
    asked: list[StoredTensor] = []

    def asking() -> Iterator[StoredTensor]:
        for each in list_tensors(path):
            asked.append(each)
            yield each

    reading = read_tensors(asking(), torch.device("cpu"))
    next(reading)
    # Two of 4000 bytes fit; a third one was found to have no room.
    assert len(asked) == 3
    reading.close()


def test_a_file_that_was_cut_short_meanwhile_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "f"
    save_file({"weight": torch.zeros(1000)}, path)
    listed = list_tensors(path)
    path.write_bytes(path.read_bytes()[:-1])

    with pytest.raises(OSError, match="weight ends after 3999 bytes"):
        list(read_tensors(listed, torch.device("cpu")))
