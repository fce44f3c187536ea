import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from raydix.errors import CheckpointError
from raydix.runtime.model.checkpoint.stored_tensors import list_tensors


def with_header(header: bytes, tensors: bytes = b"") -> bytes:
    return len(header).to_bytes(8, "little") + header + tensors


def described(**entries: object) -> bytes:
    return json.dumps(entries).encode()


TWO_FLOATS = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
DAMAGED = {
    "empty": (b"", "it has 0 bytes"),
    "nothing_but_a_length": (bytes(8), "it has 8 bytes"),
    "a_page_of_html": (b"<html>Not found</html>", "announce a header of"),
    "a_header_past_the_end": (with_header(b"{}")[:9], "a header of 2 bytes; expected at most 1, "),
    "no_json": (with_header(b"{]"), "Expecting"),
    "deep": (with_header(b"[" * 100_000), "recursion"),
    "a_list": (with_header(b"[]"), "its header is a list"),
    "no_shape": (with_header(described(weight={"dtype": "F32"})), "describes weight by"),
    "no_entry": (with_header(described(weight=3)), "describes weight by 3"),
    "an_unknown_dtype": (
        with_header(described(weight={**TWO_FLOATS, "dtype": "F3"}), bytes(8)),
        "weight is F3",
    ),
    "a_shape_of_other_bytes": (
        with_header(described(weight={**TWO_FLOATS, "shape": [3]}), bytes(8)),
        r"weight, F32 \[3\], has 8 bytes",
    ),
    "a_gap": (
        with_header(described(weight={**TWO_FLOATS, "data_offsets": [4, 12]}), bytes(12)),
        "weight begins at byte",
    ),
    "cut_short": (with_header(described(weight=TWO_FLOATS), bytes(7)), "its header describes"),
    "too_long": (with_header(described(weight=TWO_FLOATS), bytes(9)), "its header describes"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_is_told_with_what_was_expected(name: str, tmp_path: Path) -> None:
    content, reason = DAMAGED[name]
    path = tmp_path / "f.safetensors"
    path.write_bytes(content)

    with pytest.raises(CheckpointError, match=f"{path} is cut short or corrupt: .*{reason}.*Fetch"):
        list_tensors(path)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_file_is_told_and_not_waited_for(
    make: Callable[[Path], None], tmp_path: Path
) -> None:
    path = tmp_path / "f.safetensors"
    make(path)
    with pytest.raises(CheckpointError, match=f"{path} is no file"):
        list_tensors(path)


def test_what_git_leaves_in_place_of_weights_is_told(tmp_path: Path) -> None:
    path = tmp_path / "f.safetensors"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")

    with pytest.raises(CheckpointError, match="git lfs pull"):
        list_tensors(path)


def test_a_tensor_may_have_any_name_but_that_of_the_metadata(tmp_path: Path) -> None:
    save_file({"__weight": torch.zeros(2)}, tmp_path / "f", metadata={"format": "pt"})
    assert [each.name for each in list_tensors(tmp_path / "f")] == ["__weight"]


def test_tensors_without_bytes_are_listed(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(0, 3), "b": torch.zeros(2), "c": torch.zeros(0)}, tmp_path / "f")
    assert {each.name for each in list_tensors(tmp_path / "f")} == {"a", "b", "c"}
