"""NIXL's transfers alone: what a failed batch says of each file, and what cannot be used at all."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from raydix.errors import ConfigError
from raydix.runtime.messages.host import ObjectStatus
from raydix.runtime.storage.file_transfers import Piece
from raydix.runtime.storage.nixl import NixlTransfers

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


def piece_of(arena: memoryview, place: int, path: Path, flags: int = os.O_RDWR | os.O_CREAT) -> Piece:
    page = arena[place * PAGE_BYTES : (place + 1) * PAGE_BYTES]
    return Piece(os.open(path, flags), page, place * PAGE_BYTES)


def test_batch_is_written_and_read_back(transfers: NixlTransfers, arena: memoryview, tmp_path: Path) -> None:
    for place in range(8):
        arena[place * PAGE_BYTES : (place + 1) * PAGE_BYTES] = bytes([place + 1]) * PAGE_BYTES
    written = [piece_of(arena, place, tmp_path / str(place)) for place in range(8)]
    assert transfers.write(written) == [OK] * 8
    assert [(tmp_path / str(place)).read_bytes()[0] for place in range(8)] == list(range(1, 9))
    read = [piece_of(arena, 8 + place, tmp_path / str(place)) for place in range(8)]
    assert transfers.read(read) == [OK] * 8
    assert arena[8 * PAGE_BYTES :] == arena[: 8 * PAGE_BYTES]
    for piece in written + read:
        os.close(piece.fd)


def test_failed_batch_says_what_is_wrong_with_each_file(
    transfers: NixlTransfers, arena: memoryview, tmp_path: Path
) -> None:
    for place in range(4):
        (tmp_path / str(place)).write_bytes(bytes([place + 1]) * PAGE_BYTES)
    (tmp_path / "1").write_bytes(b"short")
    pieces = [piece_of(arena, place, tmp_path / str(place)) for place in range(3)]
    pieces.append(piece_of(arena, 3, tmp_path / "3", os.O_WRONLY))
    first, second, third, fourth = transfers.read(pieces)
    assert [first, second, third] == [OK, ObjectStatus.TOO_SHORT, OK]
    assert isinstance(fourth, OSError)
    assert arena[0] == 1
    assert arena[3 * PAGE_BYTES - 1] == 3
    os.close(pieces.pop().fd)
    pieces.pop(1)
    assert transfers.read(pieces) == [OK] * 2


def test_plugin_that_cannot_be_used_is_a_config_error(arena: memoryview) -> None:
    pytest.importorskip("nixl._api", reason="nixl is not installed", exc_type=ImportError)
    with pytest.raises(ConfigError, match="NO_SUCH_PLUGIN"):
        NixlTransfers("NO_SUCH_PLUGIN").open(arena)


def test_missing_library_is_named(monkeypatch: pytest.MonkeyPatch, arena: memoryview) -> None:
    monkeypatch.setitem(sys.modules, "nixl", None)
    with pytest.raises(ConfigError, match=r"raydix\[nixl\]"):
        NixlTransfers().open(arena)
