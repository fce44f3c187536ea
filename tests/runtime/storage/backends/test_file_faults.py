"""The file backend when system calls or transfers fail: that costs what it concerns alone."""

import errno
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from raydix.runtime.messages.host import ObjectStatus
from raydix.runtime.storage.backend import ObjectRef
from raydix.runtime.storage.backends.file import STAMP_EVERY_S, FileBackend
from raydix.runtime.storage.backends.file_transfers import Result, SystemCalls
from raydix.runtime.storage.backends.file_tree import NewFiles
from tests.descriptors import descriptors_of
from tests.runtime.storage.backends.test_file import files, opened, refs
from tests.runtime.storage.stores import NAMESPACE, OBJECT_BYTES

OK, MISSING, FULL = ObjectStatus.OK, ObjectStatus.MISSING, ObjectStatus.FULL
IO_ERROR = ObjectStatus.IO_ERROR


def refuse_unlinks(monkeypatch: pytest.MonkeyPatch, *spoilt: Path) -> None:
    """Refuse to unlink these files; without any, all of them."""
    unlink = os.unlink

    def refuse(path: str) -> None:
        if not spoilt or Path(path) in spoilt:
            raise OSError(errno.EROFS, "Read-only file system", path)
        unlink(path)

    monkeypatch.setattr(os, "unlink", refuse)


def test_disk_that_deletes_nothing_for_a_while_is_full_meanwhile_and_not_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = opened(tmp_path, max_bytes=32 * OBJECT_BYTES)
    assert backend.batch_put_from(refs(*range(32)), 1.0) == [OK] * 32

    refuse_unlinks(monkeypatch)
    for turn in range(100):
        assert backend.batch_put_from(refs(100 + turn, 300 + turn), 1.0) == [FULL] * 2
        assert not backend.tidy(), "there is no use in going on at once"
    assert backend.stats()["objects"] == 32 == len(files(tmp_path))

    monkeypatch.undo()
    while backend.tidy():
        pass
    assert backend.batch_put_from(refs(*range(100, 132)), 1.0) == [OK] * 32
    assert backend.stats()["objects"] == 32 == len(files(tmp_path))
    backend.check()


def test_full_disk_is_opened_and_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = opened(tmp_path, max_bytes=8 * OBJECT_BYTES)
    backend.batch_put_from(refs(1, 2), 1.0)
    backend.close()

    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", refuse)
    monkeypatch.setattr(os, "pwrite", refuse)
    again = opened(tmp_path, max_bytes=8 * OBJECT_BYTES)
    assert again.batch_get_into(refs(1, 2), 1.0) == [OK] * 2
    assert again.batch_put_from(refs(3), 1.0) == [FULL]
    assert len(files(tmp_path)) == 2
    again.close()


def test_file_that_cannot_be_deleted_is_counted_and_others_go_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = opened(tmp_path, max_bytes=4 * OBJECT_BYTES)
    backend.batch_put_from(refs(0, 1, 2, 3), 1.0)
    [stuck, *_] = refs(3)
    refuse_unlinks(monkeypatch, backend.path(stuck.name))
    assert backend.batch_put_from(refs(10), 1.0) == [FULL]
    assert backend.batch_put_from(refs(10, 11, 12), 1.0) == [OK] * 3
    assert backend.batch_exists([ref.name for ref in refs(3, 10, 11, 12)]) == [OK] * 4
    assert backend.stats()["bytes"] == 4 * OBJECT_BYTES
    assert backend.stats()["evictions_failed"] == 1
    backend.check()


def test_order_of_use_is_written_though_nothing_can_be_evicted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = [0.0]
    backend = FileBackend(tmp_path, 4 * OBJECT_BYTES, clock=lambda: times[0])
    backend.open(memoryview(b""), NAMESPACE)
    backend.batch_put_from(refs(0, 1, 2, 3), 1.0)
    [first] = refs(0)
    os.utime(backend.path(first.name), (1.0, 1.0))
    refuse_unlinks(monkeypatch)
    times[0] = STAMP_EVERY_S
    assert not backend.tidy()
    assert backend.path(first.name).stat().st_mtime > 1.0
    assert backend._unstamped == []


def test_removal_that_fails_keeps_the_object_on_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = opened(tmp_path)
    backend.batch_put_from(refs(1, 2), 1.0)
    refuse_unlinks(monkeypatch, backend.path(refs(1)[0].name))
    assert backend.delete([ref.name for ref in refs(1, 2)]) == [IO_ERROR, OK]
    assert backend.clear() is IO_ERROR
    assert backend.stats()["objects"] == 1 == len(files(tmp_path))


@pytest.mark.parametrize(("code", "status"), [(errno.EDQUOT, FULL), (errno.EIO, IO_ERROR)])
def test_error_of_a_close_fails_its_object_alone_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, status: ObjectStatus
) -> None:
    backend = opened(tmp_path, max_bytes=8 * OBJECT_BYTES)
    backend.batch_put_from(refs(0), 1.0)
    close, num_closed = os.close, [0]

    def close_badly(fd: int) -> None:
        close(fd)
        num_closed[0] += 1
        if num_closed[0] == 2:
            raise OSError(code, os.strerror(code))

    open_files = descriptors_of(str(tmp_path))
    with monkeypatch.context() as patch:
        patch.setattr(os, "close", close_badly)
        assert backend.batch_put_from(refs(1, 2, 3), 1.0) == [OK, status, OK]
        num_closed[0] = 0
        assert backend.batch_get_into(refs(0, 1, 3), 1.0) == [OK] * 3
    assert descriptors_of(str(tmp_path)) == open_files
    assert len(files(tmp_path)) == 3
    assert backend.stats()["bytes"] == 3 * OBJECT_BYTES
    assert backend.batch_put_from(refs(*range(10, 18)), 1.0) == [OK] * 8
    backend.check()


class BrokenTransfers(SystemCalls):
    """A library that raises what nobody expects."""

    def read(self, paths: Sequence[str], refs: Sequence[ObjectRef]) -> list[Result]:
        raise RuntimeError("out of order")

    def write(self, new: NewFiles, names: Sequence[str], refs: Sequence[ObjectRef]) -> list[Result]:
        for name, ref in zip(names, refs, strict=True):
            os.write(new.create(name), ref.page)
        raise RuntimeError("out of order")


class HalfBrokenTransfers(BrokenTransfers):
    """One that raises after its first file."""

    def write(self, new: NewFiles, names: Sequence[str], refs: Sequence[ObjectRef]) -> list[Result]:
        new.write(names[0], refs[0].page)
        return super().write(new, names[1:], refs[1:])


def test_file_that_is_published_before_transfers_raise_is_on_record(tmp_path: Path) -> None:
    backend = FileBackend(
        tmp_path, 4 * OBJECT_BYTES, clock=lambda: 0.0, transfers=HalfBrokenTransfers()
    )
    backend.open(memoryview(b""), NAMESPACE)
    with pytest.raises(RuntimeError, match="out of order"):
        backend.batch_put_from(refs(1, 2), 1.0)
    assert backend.stats()["bytes"] == OBJECT_BYTES
    assert len(files(tmp_path)) == 1
    backend.check()


def test_transfers_that_raise_leave_no_descriptor_no_file_and_no_reservation(
    tmp_path: Path,
) -> None:
    whole = opened(tmp_path)
    whole.batch_put_from(refs(1, 2), 1.0)
    backend = FileBackend(
        tmp_path, 4 * OBJECT_BYTES, clock=lambda: 0.0, transfers=BrokenTransfers()
    )
    backend.open(memoryview(b""), NAMESPACE)

    open_files = descriptors_of(str(tmp_path))
    for _ in range(4):
        with pytest.raises(RuntimeError, match="out of order"):
            backend.batch_get_into(refs(1, 2), 1.0)
        with pytest.raises(RuntimeError, match="out of order"):
            backend.batch_put_from(refs(3, 4), 1.0)

    assert descriptors_of(str(tmp_path)) == open_files
    assert len(files(tmp_path)) == 2
    backend._transfers = SystemCalls()
    assert backend.batch_put_from(refs(5, 6, 7, 8), 1.0) == [OK] * 4
    backend.check()


def test_folder_that_cannot_be_made_fails_its_object_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = opened(tmp_path)

    def refuse(path: str, mode: int) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", path)

    backend.path(refs(1)[0].name).parent.rmdir()
    monkeypatch.setattr(os, "mkdir", refuse)
    assert backend.batch_put_from(refs(1), 1.0) == [IO_ERROR]
    monkeypatch.undo()
    assert backend.batch_put_from(refs(1), 1.0) == [OK]
