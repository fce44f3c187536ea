"""NIXL's transfers alone: what a failed batch says of each file, and what cannot be used at all."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from raydix.errors import ConfigError
from raydix.runtime.messages.host import ObjectStatus
from raydix.runtime.storage.backend import ObjectName, ObjectRef
from raydix.runtime.storage.nixl import NixlTransfers
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


def opened(folder: Path, count: int, flags: int = os.O_RDWR | os.O_CREAT) -> list[int]:
    return [os.open(folder / str(number), flags) for number in range(count)]


def test_batch_is_written_and_read_back(
    transfers: NixlTransfers, arena: memoryview, tmp_path: Path
) -> None:
    for place in range(8):
        arena[place * PAGE_BYTES : (place + 1) * PAGE_BYTES] = bytes([place + 1]) * PAGE_BYTES
    fds = opened(tmp_path, 8)
    assert transfers.write(fds, refs_to(arena, range(8))) == [OK] * 8
    assert [(tmp_path / str(place)).read_bytes()[0] for place in range(8)] == list(range(1, 9))
    assert transfers.read(fds, refs_to(arena, range(8, 16))) == [OK] * 8
    assert arena[8 * PAGE_BYTES :] == arena[: 8 * PAGE_BYTES]
    for fd in fds:
        os.close(fd)


def test_failed_batch_says_what_is_wrong_with_each_file(
    transfers: NixlTransfers, arena: memoryview, tmp_path: Path
) -> None:
    for place in range(4):
        (tmp_path / str(place)).write_bytes(bytes([place + 1]) * PAGE_BYTES)
    (tmp_path / "1").write_bytes(b"short")
    refs = refs_to(arena, range(4))
    fds = [*opened(tmp_path, 3), os.open(tmp_path / "3", os.O_WRONLY)]

    first, second, third, fourth = transfers.read(fds, refs)
    assert [first, second, third] == [OK, ObjectStatus.TOO_SHORT, OK]
    assert isinstance(fourth, OSError)
    assert arena[0] == 1
    assert arena[3 * PAGE_BYTES - 1] == 3

    assert transfers.read([fds[0], fds[2]], [refs[0], refs[2]]) == [OK] * 2
    for fd in fds:
        os.close(fd)


def test_plugin_that_cannot_be_used_is_a_config_error(arena: memoryview) -> None:
    pytest.importorskip("nixl._api", reason="nixl is not installed", exc_type=ImportError)
    with pytest.raises(ConfigError, match="NO_SUCH_PLUGIN"):
        NixlTransfers("NO_SUCH_PLUGIN").open(arena)


def test_missing_library_is_named(monkeypatch: pytest.MonkeyPatch, arena: memoryview) -> None:
    monkeypatch.setitem(sys.modules, "nixl", None)
    with pytest.raises(ConfigError, match=r"raydix\[nixl\]"):
        NixlTransfers().open(arena)
