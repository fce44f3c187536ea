"""NIXL's transfers alone: what a failed batch says of each file, and what cannot be used at all."""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from raydix.errors import ConfigError
from raydix.plugins.storage.nixl import NixlTransfers
from raydix.runtime.messages.host import ObjectStatus
from raydix.runtime.storage.backend import ObjectName, ObjectRef
from raydix.runtime.storage.backends.file_tree import FileTree, NewFiles
from raydix.runtime.storage.file_modes import OWNER_ALONE
from tests.descriptors import descriptors_of
from tests.runtime.storage.stores import make_key

OK = ObjectStatus.OK
PAGE_BYTES = 4096


@pytest.fixture
def arena() -> memoryview:
    return memoryview(np.zeros(16 * PAGE_BYTES, dtype=np.uint8)).cast("B")


@pytest.fixture(params=["use_uring", "use_aio", "use_posix_aio"])
def transfers(request: pytest.FixtureRequest, arena: memoryview) -> Iterator[NixlTransfers]:
    pytest.importorskip("nixl._api", reason="nixl is not installed", exc_type=ImportError)
    transfers = NixlTransfers("POSIX", {request.param: "true"})
    transfers.open(arena)
    yield transfers
    transfers.close()


def refs_to(arena: memoryview, places: range) -> list[ObjectRef]:
    return [
        ObjectRef(
            ObjectName(make_key(place), 0),
            arena[place * PAGE_BYTES : (place + 1) * PAGE_BYTES],
            place * PAGE_BYTES,
        )
        for place in places
    ]


def tree_in(folder: Path) -> FileTree:
    return FileTree(folder, OWNER_ALONE)


def test_batch_is_written_and_read_back(
    transfers: NixlTransfers, arena: memoryview, tmp_path: Path
) -> None:
    for place in range(8):
        arena[place * PAGE_BYTES : (place + 1) * PAGE_BYTES] = bytes([place + 1]) * PAGE_BYTES
    names = [str(place) for place in range(8)]
    with NewFiles(tree_in(tmp_path), ".tmp") as new:
        assert transfers.write(new, names, refs_to(arena, range(8))) == [OK] * 8
    assert [(tmp_path / name).read_bytes()[0] for name in names] == list(range(1, 9))
    paths = [str(tmp_path / name) for name in names]
    assert transfers.read(paths, refs_to(arena, range(8, 16))) == [OK] * 8
    assert arena[8 * PAGE_BYTES :] == arena[: 8 * PAGE_BYTES]


def test_file_that_cannot_be_begun_fails_alone(
    transfers: NixlTransfers, arena: memoryview, tmp_path: Path
) -> None:
    (tmp_path / "1.tmp").touch()
    with NewFiles(tree_in(tmp_path), ".tmp") as new:
        first, second, third = transfers.write(new, ["0", "1", "2"], refs_to(arena, range(3)))
    assert [first, third] == [OK, OK]
    assert isinstance(second, FileExistsError)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1.tmp", "2"]


def test_failed_batch_says_what_is_wrong_with_each_file(
    transfers: NixlTransfers, arena: memoryview, tmp_path: Path
) -> None:
    for place in range(6):
        (tmp_path / str(place)).write_bytes(bytes([place + 1]) * PAGE_BYTES)
    (tmp_path / "1").write_bytes(b"short")
    (tmp_path / "2").unlink()
    (tmp_path / "3").write_bytes(bytes(PAGE_BYTES + 1))
    refs = refs_to(arena, range(6))
    paths = [str(tmp_path / str(place)) for place in range(6)]

    first, second, third, fourth, *rest = transfers.read(paths, refs)
    assert [first, second, fourth] == [OK, ObjectStatus.TOO_SHORT, ObjectStatus.WRONG_LENGTH]
    assert isinstance(third, FileNotFoundError)
    assert rest == [OK, OK]
    assert [arena[place * PAGE_BYTES] for place in (0, 4, 5)] == [1, 5, 6]
    assert not descriptors_of(str(tmp_path))


def test_transfer_that_fails_is_done_again_file_by_file(
    arena: memoryview, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    transfers = NixlTransfers()
    monkeypatch.setattr(transfers, "_transfer", lambda *_: False)
    arena[: 2 * PAGE_BYTES] = bytes([7]) * (2 * PAGE_BYTES)
    with NewFiles(tree_in(tmp_path), ".tmp") as new:
        assert transfers.write(new, ["0", "2"], refs_to(arena, range(2))) == [OK] * 2

    paths = [str(tmp_path / name) for name in ("0", "1", "2")]
    first, second, third = transfers.read(paths, refs_to(arena, range(4, 7)))
    assert [first, third] == [OK, OK]
    assert isinstance(second, FileNotFoundError)
    assert [arena[place * PAGE_BYTES] for place in (4, 5, 6)] == [7, 0, 7]


def test_plugin_that_cannot_be_used_is_a_config_error(arena: memoryview) -> None:
    pytest.importorskip("nixl._api", reason="nixl is not installed", exc_type=ImportError)
    with pytest.raises(ConfigError, match="NO_SUCH_PLUGIN"):
        NixlTransfers("NO_SUCH_PLUGIN").open(arena)


def test_missing_library_is_named(monkeypatch: pytest.MonkeyPatch, arena: memoryview) -> None:
    monkeypatch.setitem(sys.modules, "nixl", None)
    with pytest.raises(ConfigError, match=r"raydix\[nixl\]"):
        NixlTransfers().open(arena)
