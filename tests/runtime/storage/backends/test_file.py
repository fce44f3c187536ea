"""The file backend: restarts, temporaries, trouble with the disk."""

import errno
import json
import os
from pathlib import Path

import pytest

from raydix.errors import ConfigError
from raydix.runtime.messages.host import ObjectStatus
from raydix.runtime.storage.backend import ObjectName, ObjectRef
from raydix.runtime.storage.backends.file import STAMP_EVERY_S, FileBackend
from raydix.runtime.storage.backends.file_tree import FileTree
from raydix.runtime.storage.capacity.stored_objects import TRIM_OBJECTS
from raydix.runtime.storage.namespace import Namespace, make_namespace
from tests.runtime.storage.stores import LAYOUT, NAMESPACE, OBJECT_BYTES, Bench, FileStore, make_key

OK, MISSING, FULL = ObjectStatus.OK, ObjectStatus.MISSING, ObjectStatus.FULL


def opened(root: Path, max_bytes: int | None = None) -> FileBackend:
    backend = FileBackend(root, max_bytes, clock=lambda: 0.0)
    backend.open(memoryview(b""), NAMESPACE)
    return backend


def refs(*names: int) -> list[ObjectRef]:
    return [
        ObjectRef(ObjectName(make_key(name), 0), memoryview(bytearray(OBJECT_BYTES)), 0)
        for name in names
    ]


def files(root: Path) -> list[Path]:
    """Objects, and what is or was to become one."""
    return [path for path in root.rglob("*") if path.suffix in (".page", ".tmp")]


def test_restart_finds_the_pages(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    bench = Bench(store.make())
    bench.write(list(range(6)))
    bench.close()
    again = Bench(store.make())
    assert again.read(list(range(6))) == [OK] * 6
    assert again.worker.stats()["bytes"] == 6 * OBJECT_BYTES
    again.close()


def test_order_of_use_outlives_a_restart(tmp_path: Path) -> None:
    backend = opened(tmp_path)
    backend.batch_put_from(refs(0, 1, 2, 3), 1.0)
    backend.batch_get_into(refs(3), 1.0)
    backend.close()
    again = opened(tmp_path, max_bytes=2 * OBJECT_BYTES)
    exists = again.batch_exists([ref.name for ref in refs(0, 1, 2, 3)])
    assert exists == [OK, MISSING, MISSING, OK]


def test_batch_loses_its_tail_first(tmp_path: Path) -> None:
    backend = opened(tmp_path, max_bytes=4 * OBJECT_BYTES)
    backend.batch_put_from(refs(0, 1, 2, 3), 1.0)
    for name, left in ((10, 3), (11, 2)):
        backend.batch_put_from(refs(name), 1.0)
        exists = backend.batch_exists([ref.name for ref in refs(0, 1, 2, 3)])
        assert exists == [OK] * left + [MISSING] * (4 - left)


def test_bound_spans_namespaces(tmp_path: Path) -> None:
    old = FileBackend(tmp_path, None, clock=lambda: 0.0)
    old.open(memoryview(b""), make_namespace(b"model", "v0", LAYOUT))
    old.batch_put_from(refs(1, 2, 3), 1.0)
    backend = opened(tmp_path, max_bytes=3 * OBJECT_BYTES)
    assert backend.batch_put_from(refs(1, 2), 1.0) == [OK, OK]
    assert len(files(tmp_path)) == 3
    assert old.batch_exists([ref.name for ref in refs(1, 2, 3)]).count(OK) == 1


def test_order_of_use_is_on_disk_after_a_while_though_the_process_is_killed(tmp_path: Path) -> None:
    times = [0.0]
    backend = FileBackend(tmp_path, clock=lambda: times[0])
    backend.open(memoryview(b""), NAMESPACE)
    backend.batch_put_from(refs(0, 1, 2, 3), 1.0)
    backend.batch_get_into(refs(3), 1.0)
    times[0] = STAMP_EVERY_S
    assert not backend.tidy()
    again = opened(tmp_path, max_bytes=2 * OBJECT_BYTES)
    assert again.batch_exists([ref.name for ref in refs(0, 1, 2, 3)]) == [OK, MISSING, MISSING, OK]


def test_files_of_another_user_are_read_though_their_times_cannot_be_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = opened(tmp_path)
    backend.batch_put_from(refs(1), 1.0)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, "not the owner")

    monkeypatch.setattr(os, "utime", refuse)
    assert backend.batch_get_into(refs(1), 1.0) == [OK]
    backend.close()


def test_object_that_is_evicted_under_its_reader_is_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = opened(tmp_path, max_bytes=OBJECT_BYTES)
    [written], [read] = refs(1), refs(1)
    written.page[:] = bytes(i % 256 for i in range(OBJECT_BYTES))
    assert backend.batch_put_from([written], 1.0) == [OK]
    preadv = os.preadv

    def evict_and_read(fd: int, buffers: list[memoryview], offset: int) -> int:
        assert backend.batch_put_from(refs(2), 1.0) == [OK]
        return preadv(fd, buffers, offset)

    monkeypatch.setattr(os, "preadv", evict_and_read)
    assert backend.batch_get_into([read], 1.0) == [OK]
    assert read.page == written.page
    assert backend.batch_exists([written.name]) == [MISSING]


def test_eviction_goes_from_the_high_mark_to_the_low_one_in_pieces_and_is_counted(
    tmp_path: Path,
) -> None:
    backend = opened(tmp_path, max_bytes=32 * TRIM_OBJECTS * OBJECT_BYTES)
    for first in range(0, 31 * TRIM_OBJECTS, TRIM_OBJECTS):
        backend.batch_put_from(refs(*range(first, first + TRIM_OBJECTS)), 1.0)
    assert not backend.tidy()

    backend.batch_put_from(refs(31 * TRIM_OBJECTS), 1.0)
    assert backend.tidy()
    assert backend.stats()["objects"] == 30 * TRIM_OBJECTS + 1
    assert backend.tidy()
    assert not backend.tidy()
    assert backend.stats()["objects"] == 30 * TRIM_OBJECTS

    assert (
        backend.stats()["objects_evicted"]
        == TRIM_OBJECTS + 1
        == 31 * TRIM_OBJECTS + 1 - len(files(tmp_path))
    )
    backend.check()


@pytest.mark.parametrize(
    ("code", "status"), [(errno.ENOSPC, FULL), (errno.EIO, ObjectStatus.IO_ERROR)]
)
def test_failed_write_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, status: ObjectStatus
) -> None:
    backend = opened(tmp_path)

    def fail(fd: int, page: object, offset: int) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "pwrite", fail)
    assert backend.batch_put_from(refs(1), 1.0) == [status]
    assert files(tmp_path) == []
    assert backend.stats()["bytes"] == 0
    monkeypatch.undo()
    assert backend.batch_put_from(refs(1), 1.0) == [OK]


def test_short_reads_and_writes_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = opened(tmp_path)
    preadv, pwrite = os.preadv, os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, page, offset: pwrite(fd, page[:100], offset))
    monkeypatch.setattr(
        os, "preadv", lambda fd, buffers, offset: preadv(fd, [buffers[0][:33]], offset)
    )
    [written] = refs(1)
    written.page[:] = bytes(i % 256 for i in range(OBJECT_BYTES))
    [read] = refs(1)
    assert backend.batch_put_from([written], 1.0) == [OK]
    assert backend.batch_get_into([read], 1.0) == [OK]
    assert read.page == written.page


def test_unusable_folder_is_a_config_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cache\.l3\.path"):
        opened(tmp_path / "file" / "l3")


def test_manifest_says_what_the_namespace_is(tmp_path: Path) -> None:
    opened(tmp_path)
    manifest = json.loads((tmp_path / NAMESPACE.hex / "manifest.json").read_text())
    assert manifest["model_fingerprint"] == b"model".hex()
    assert manifest["page_size"] == LAYOUT.page_size


def test_objects_of_another_engine_are_counted_when_they_are_read(tmp_path: Path) -> None:
    backend = opened(tmp_path)
    opened(tmp_path).batch_put_from(refs(5), 1.0)
    assert backend.stats()["objects"] == 0
    assert backend.batch_get_into(refs(5), 1.0) == [OK]
    assert backend.stats()["objects"] == 1


def test_object_that_is_written_while_it_is_found_missing_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = opened(tmp_path)
    has_namespace = FileTree.has_namespace

    def write_and_look(tree: FileTree, namespace: Namespace) -> bool:
        assert backend.batch_put_from(refs(1), 1.0) == [OK]
        return has_namespace(tree, namespace)

    with monkeypatch.context() as patch:
        patch.setattr(FileTree, "has_namespace", write_and_look)
        assert backend.batch_exists([ref.name for ref in refs(1, 2)]) == [MISSING, MISSING]
    assert backend.stats()["bytes"] == OBJECT_BYTES
    backend.check()


def test_object_that_is_written_while_its_bad_copy_is_deleted_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = opened(tmp_path)
    backend.batch_put_from(refs(1), 1.0)
    unlink = os.unlink

    def unlink_and_write(path: str) -> None:
        unlink(path)
        assert backend.batch_put_from(refs(1), 1.0) == [OK]

    monkeypatch.setattr(os, "unlink", unlink_and_write)
    assert backend.delete([ref.name for ref in refs(1)]) == [OK]
    assert len(files(tmp_path)) == 1
    assert backend.stats()["bytes"] == OBJECT_BYTES
    backend.check()
