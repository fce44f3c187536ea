"""The 3FS backend on the emulator of USRBIO: what it needs, and I/O that fails or stalls."""

import builtins
import errno
import threading
from pathlib import Path

import pytest

from raydix.errors import ConfigError
from raydix.ids import HostPageId
from raydix.plugins.storage.hf3fs import Hf3fsBackend
from raydix.plugins.storage.slab import Slab, SlabIndex
from raydix.plugins.storage.usrbio import UsrbioArena
from raydix.runtime.messages.host import ObjectStatus
from raydix.runtime.storage.backend import ObjectName, ObjectRef
from raydix.runtime.tiers.host_arena import HostArena
from tests.plugins.storage.hf3fs_emulator import UsrbioEmulator
from tests.runtime.storage.stores import LAYOUT, NAMESPACE, OBJECT_BYTES, Bench, make_key

OK, MISSING, FULL = ObjectStatus.OK, ObjectStatus.MISSING, ObjectStatus.FULL
IO_ERROR, TOO_SHORT = ObjectStatus.IO_ERROR, ObjectStatus.TOO_SHORT


@pytest.fixture
def usrbio(tmp_path: Path) -> UsrbioEmulator:
    return UsrbioEmulator(tmp_path)


@pytest.fixture
def backend(usrbio: UsrbioEmulator) -> Hf3fsBackend:
    return Hf3fsBackend(usrbio.mount / "l3", None, usrbio)


def test_closing_leaves_nothing_shared_and_no_name(
    usrbio: UsrbioEmulator, backend: Hf3fsBackend
) -> None:
    bench = Bench(backend)
    assert len(usrbio.links) == 1
    assert not Path(usrbio.links[0].readlink()).exists()
    bench.write([1])
    bench.close()
    assert usrbio.links == []
    assert usrbio.registered == set()


def test_arena_that_cannot_have_a_name_is_a_config_error(
    usrbio: UsrbioEmulator, backend: Hf3fsBackend
) -> None:
    arena = HostArena.create(LAYOUT, 4096, num_threads=1)
    with pytest.raises(ConfigError, match="/dev/shm"):
        backend.open(arena.buffer, NAMESPACE)
    assert usrbio.registered == set()
    arena.close()


def test_folder_elsewhere_is_a_config_error(tmp_path: Path) -> None:
    usrbio = UsrbioEmulator(tmp_path / "mount")
    with pytest.raises(ConfigError, match="not on a 3FS mount"):
        Hf3fsBackend(tmp_path / "else", None, usrbio).open(memoryview(b""), NAMESPACE)


def test_folder_of_another_engine_is_a_config_error(
    usrbio: UsrbioEmulator, backend: Hf3fsBackend
) -> None:
    bench = Bench(backend)
    with pytest.raises(ConfigError, match="in use by another engine"):
        Bench(Hf3fsBackend(usrbio.mount / "l3", None, usrbio))
    bench.close()
    Bench(Hf3fsBackend(usrbio.mount / "l3", None, usrbio)).close()


def test_without_its_library_the_backend_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = builtins.__import__

    def no_library(name: str, *arguments: object) -> object:
        if name.startswith("hf3fs"):
            raise ImportError("No module named hf3fs_fuse")
        return find(name, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", no_library)
    with pytest.raises(ConfigError, match="hf3fs_fuse"):
        Hf3fsBackend(tmp_path, None)


@pytest.mark.parametrize(("code", "status"), [(errno.ENOSPC, FULL), (errno.EIO, IO_ERROR)])
def test_failed_write_publishes_nothing(
    usrbio: UsrbioEmulator, backend: Hf3fsBackend, code: int, status: ObjectStatus
) -> None:
    bench = Bench(backend)
    usrbio.errors.extend([code] * 2)
    assert sorted(bench.write([1, 2, 3])) == sorted([OK, status, status])
    assert bench.exists([1, 2, 3]).count(OK) == 1
    assert backend.stats()["bytes"] == OBJECT_BYTES
    assert bench.write([1, 2, 3]) == [OK] * 3
    usrbio.errors.append(code)
    assert sorted(bench.read([1, 2, 3])) == sorted([OK, OK, status])
    assert bench.read([1, 2, 3]) == [OK] * 3
    backend.check()
    bench.close()


def test_slab_that_was_cut_short_is_found(usrbio: UsrbioEmulator, backend: Hf3fsBackend) -> None:
    bench = Bench(backend)
    bench.write([1])
    (usrbio.mount / "l3/slots-4096.slab").open("r+b").truncate(100)
    assert bench.read([1]) == [TOO_SHORT]
    assert bench.exists([1]) == [MISSING]
    bench.close()


def test_batch_beyond_a_ring_comes_back(backend: Hf3fsBackend) -> None:
    bench = Bench(backend, num_pages=160)
    refs = [
        ObjectRef(
            ObjectName(make_key(page), 0),
            bench.arena.page(HostPageId(page), 0),
            bench.arena.geometry.page_offset(HostPageId(page), 0),
        )
        for page in range(150)
    ]
    assert backend.batch_put_from(refs, 1e18) == [OK] * 150
    assert backend.batch_get_into(refs, 1e18) == [OK] * 150
    bench.close()


def test_read_under_way_is_waited_for_whatever_its_deadline(
    usrbio: UsrbioEmulator, backend: Hf3fsBackend
) -> None:
    """The 3FS client cannot be told to leave a page alone."""
    now_s = [0.0]
    backend._clock = lambda: now_s[0]
    bench = Bench(backend)
    bench.write([1])
    page = bench.arena.page(HostPageId(40), 0)
    ref = ObjectRef(
        ObjectName(make_key(1), 0), page, bench.arena.geometry.page_offset(HostPageId(40), 0)
    )

    statuses: list[ObjectStatus] = []
    usrbio.gate.clear()
    usrbio.arrived.clear()
    reader = threading.Thread(target=lambda: statuses.extend(backend.batch_get_into([ref], 1.0)))
    reader.start()
    assert usrbio.arrived.wait(30)

    now_s[0] = 2.0
    assert reader.is_alive()
    assert backend.delete([ref.name]) == [OK]
    usrbio.gate.set()
    reader.join(30)

    assert statuses == [OK]
    assert backend.batch_get_into([ref], 1.0) == [ObjectStatus.TIMED_OUT]
    backend.check()
    bench.close()


def test_failures_while_extents_are_taken_or_published_leak_no_room(
    usrbio: UsrbioEmulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = Hf3fsBackend(usrbio.mount / "l3", 4 * OBJECT_BYTES, usrbio)
    bench = Bench(backend)
    assert bench.write([1, 2]) == [OK] * 2

    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    for owner, method in ((Slab, "take"), (SlabIndex, "add"), (UsrbioArena, "write")):
        with monkeypatch.context() as patch:
            patch.setattr(owner, method, refuse)
            for turn in range(8):
                assert bench.write([10 + turn, 20 + turn]) == [IO_ERROR] * 2
        backend.check()
    assert bench.write([30, 31, 32, 33]) == [OK] * 4
    assert bench.read([30, 31, 32, 33]) == [OK] * 4
    backend.check()
    bench.close()


def test_open_that_fails_leaves_nothing_open(
    usrbio: UsrbioEmulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("out of order")

    backend = Hf3fsBackend(usrbio.mount / "l3", None, usrbio)
    monkeypatch.setattr(backend, "_take_stock", refuse)
    with pytest.raises(RuntimeError, match="out of order"):
        Bench(backend)
    assert usrbio.links == []
    Bench(Hf3fsBackend(usrbio.mount / "l3", None, usrbio)).close()


def test_files_are_their_users_alone(usrbio: UsrbioEmulator, backend: Hf3fsBackend) -> None:
    bench = Bench(backend)
    bench.write([1])
    bench.close()
    folder = usrbio.mount / "l3"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {
        path.stat().st_mode & 0o777 for path in folder.iterdir() if path.name != "max_bytes"
    } == {0o600}
