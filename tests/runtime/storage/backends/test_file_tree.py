"""Folders of the file backend: whose they are, what is swept, and what vanishes meanwhile."""

import fcntl
import multiprocessing
import os
import shutil
import signal
import stat
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from raydix.errors import ConfigError
from raydix.runtime.messages.host import ObjectStatus
from raydix.runtime.storage.backend import ObjectRef
from raydix.runtime.storage.backends import writer_lock
from raydix.runtime.storage.backends.file import FileBackend
from raydix.runtime.storage.backends.file_transfers import Result, SystemCalls
from raydix.runtime.storage.backends.file_tree import NewFiles
from raydix.runtime.storage.backends.writer_lock import ABANDONED_S, WriterLock
from raydix.runtime.storage.file_modes import GROUP_TOO, OWNER_ALONE, Modes
from tests.descriptors import descriptors_of
from tests.runtime.storage.backends.test_file import files, opened, refs
from tests.runtime.storage.stores import NAMESPACE, OBJECT_BYTES

OK, MISSING, IO_ERROR = ObjectStatus.OK, ObjectStatus.MISSING, ObjectStatus.IO_ERROR


class HeldWrites(SystemCalls):
    """Calls back when all is written and nothing has its name yet."""

    def __init__(self, then: object) -> None:
        self.then = then

    def write(self, new: NewFiles, names: Sequence[str], refs: Sequence[ObjectRef]) -> list[Result]:
        for name, ref in zip(names, refs, strict=True):
            os.write(new.create(name), ref.page)
        assert callable(self.then)
        self.then()
        for name in names:
            new.publish(name)
        return [OK] * len(names)


def writer(root: Path, then: object) -> FileBackend:
    backend = FileBackend(root, clock=lambda: 0.0, transfers=HeldWrites(then))
    backend.open(memoryview(b""), NAMESPACE)
    return backend


def write_and_hang(root: Path, started: Connection) -> None:
    writer(root, lambda: (started.send(1), signal.pause())).batch_put_from(refs(1, 2), 1.0)


def test_temporaries_of_a_killed_writer_are_swept_by_the_next_engine(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=write_and_hang, args=(tmp_path, sender), daemon=True)
    process.start()
    assert receiver.poll(60)
    assert len(files(tmp_path)) == 2
    process.kill()
    process.join()
    again = opened(tmp_path)
    assert files(tmp_path) == []
    assert again.stats()["temporaries_swept"] == 2
    assert len(list(tmp_path.glob("writer-*"))) == 1, "its own"


def test_temporaries_of_a_living_writer_are_spared_whatever_its_process_id(tmp_path: Path) -> None:
    others: list[FileBackend] = []
    backend = writer(tmp_path, lambda: others.append(opened(tmp_path)))
    assert backend.batch_put_from(refs(1, 2), 1.0) == [OK] * 2
    assert "temporaries_swept" not in others[0].stats()


def temporary_of(root: Path, token: str, age_s: float) -> Path:
    backend = opened(root)
    backend.batch_put_from(refs(1), 1.0)
    path = backend.path(refs(1)[0].name).with_suffix(f".page.{token}.7.tmp")
    path.write_bytes(b"half")
    then_s = path.stat().st_mtime - age_s
    os.utime(path, (then_s, then_s))
    backend.close()
    return path


@pytest.mark.parametrize(
    ("age_s", "is_there"), [(0.0, True), (ABANDONED_S / 2, True), (2 * ABANDONED_S, False)]
)
def test_temporaries_of_a_writer_on_another_host_are_judged_by_their_age(
    tmp_path: Path, age_s: float, is_there: bool
) -> None:
    path = temporary_of(tmp_path, "0123456789abcdef", age_s)
    (tmp_path / f"writer-{'e' * 32}-0123456789abcdef.lock").touch()
    opened(tmp_path)
    assert path.exists() == is_there
    assert len(list(tmp_path.glob("writer-e*"))) == 1


def test_lock_that_cannot_be_tried_counts_as_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = temporary_of(tmp_path, "0123456789abcdef", 0.0)
    (tmp_path / f"writer-{writer_lock._kernel()}-0123456789abcdef.lock").touch()

    def no_locks(*_: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    opened(tmp_path)
    assert path.exists()
    monkeypatch.undo()
    opened(tmp_path)
    assert not path.exists()


def test_closing_leaves_no_lock_and_no_descriptor(tmp_path: Path) -> None:
    backend = opened(tmp_path)
    backend.close()
    assert list(tmp_path.glob("writer-*")) == []
    assert not descriptors_of(str(tmp_path))


def test_open_that_fails_leaves_no_lock_and_no_descriptor(tmp_path: Path) -> None:
    class NoLibrary(SystemCalls):
        def open(self, arena: memoryview) -> None:
            raise ConfigError("not installed")

    with pytest.raises(ConfigError, match="not installed"):
        FileBackend(tmp_path, transfers=NoLibrary()).open(memoryview(b""), NAMESPACE)
    assert list(tmp_path.glob("writer-*")) == []
    assert not descriptors_of(str(tmp_path))


def test_lock_of_a_writer_is_not_taken_by_one_that_looks(tmp_path: Path) -> None:
    with WriterLock(tmp_path, OWNER_ALONE).dead_writers() as dead:
        assert dead == frozenset()
    first, second = WriterLock(tmp_path, OWNER_ALONE), WriterLock(tmp_path, OWNER_ALONE)
    for each in (first, second, first):
        with each.dead_writers() as dead:
            assert not dead & {first.token, second.token}


@pytest.mark.parametrize(
    ("modes", "umask"), [(OWNER_ALONE, 0o000), (OWNER_ALONE, 0o022), (GROUP_TOO, 0o077)]
)
def test_files_and_folders_have_the_modes_that_are_configured(
    tmp_path: Path, modes: Modes, umask: int
) -> None:
    former = os.umask(umask)
    try:
        backend = FileBackend(tmp_path / "l3", 1 << 20, clock=lambda: 0.0, modes=modes)
        backend.open(memoryview(b""), NAMESPACE)
        backend.batch_put_from(refs(1), 1.0)
    finally:
        os.umask(former)

    found = [tmp_path / "l3", *(tmp_path / "l3").rglob("*")]
    assert {stat.S_IMODE(path.stat().st_mode) for path in found if path.is_dir()} == {modes.folder}
    kinds = {
        path.name if path.name in ("manifest.json", "max_bytes") else path.suffix
        for path in found
        if path.is_file()
    }
    assert kinds == {"manifest.json", "max_bytes", ".page", ".lock"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in found if path.is_file()} == {modes.file}


def test_folder_of_another_user_is_passed_over_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = opened(tmp_path)
    backend.batch_put_from(refs(1), 1.0)
    (tmp_path / "0123456789abcdef").mkdir()
    scandir = os.scandir

    def refuse(path: str) -> object:
        if path.endswith("0123456789abcdef"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    again = opened(tmp_path)
    assert again.stats()["objects"] == 1
    assert again.stats()["namespaces_unreadable"] == 1


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_what_another_engine_removes_while_this_one_opens_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, depth: int
) -> None:
    backend = opened(tmp_path)
    backend.batch_put_from(refs(1, 2), 1.0)
    folder = backend.path(refs(1)[0].name).parent
    scandir, seen = os.scandir, []

    def vanish(path: str) -> object:
        """The namespace, a folder in it, or the files in that go once the folder above was read."""
        seen.append(path)
        entries = scandir(path)
        if len(seen) == depth + 1:
            found = list(entries)
            shutil.rmtree([folder.parent, folder, folder][depth])
            return Listing(found)
        return entries

    monkeypatch.setattr(os, "scandir", vanish)
    again = opened(tmp_path)
    assert again.stats()["objects"] == 0
    monkeypatch.undo()
    assert again.batch_put_from(refs(1), 1.0) == [OK]


class Listing(list[os.DirEntry[str]]):
    """Stands for what `os.scandir` returns."""

    def __enter__(self) -> "Listing":
        return self

    def __exit__(self, *_: object) -> None:
        return None


def test_objects_are_cleared_beside_a_writer_and_another_that_clears(tmp_path: Path) -> None:
    others: list[ObjectStatus] = []

    def clear_twice() -> None:
        others.extend([opened(tmp_path).clear(), opened(tmp_path).clear()])

    backend = writer(tmp_path, clear_twice)
    assert backend.batch_put_from(refs(1, 2), 1.0) == [OK] * 2
    assert others == [OK] * 2
    assert backend.batch_exists([ref.name for ref in refs(1, 2)]) == [OK] * 2, (
        "written after the flush"
    )
    assert backend.clear() is OK
    assert backend.stats()["bytes"] == 0


def test_objects_that_another_engine_removed_are_no_longer_counted(tmp_path: Path) -> None:
    backend = opened(tmp_path)
    backend.batch_put_from(refs(1, 2, 3), 1.0)
    assert opened(tmp_path).clear() is OK
    assert backend.stats()["bytes"] == 3 * OBJECT_BYTES
    assert backend.batch_get_into(refs(1), 1.0) == [MISSING]
    assert backend.batch_exists([refs(2)[0].name]) == [MISSING]
    assert backend.delete([refs(3)[0].name]) == [MISSING]
    assert backend.stats()["bytes"] == 0


def every_operation(backend: FileBackend) -> list[ObjectStatus]:
    names = [ref.name for ref in refs(1)]
    return [
        *backend.batch_exists(names),
        *backend.batch_get_into(refs(1), 1.0),
        *backend.batch_put_from(refs(1), 1.0),
        *backend.batch_put_from(refs(9), 1.0),
        *backend.delete(names),
        backend.clear(),
    ]


@pytest.mark.parametrize("is_replaced", [False, True])
def test_root_that_vanishes_fails_every_operation_and_is_not_made_again(
    tmp_path: Path, is_replaced: bool
) -> None:
    root = tmp_path / "l3"
    backend = opened(root)
    backend.batch_put_from(refs(1), 1.0)
    root.rename(tmp_path / "elsewhere")
    if is_replaced:  # what lies below a mount that is gone
        root.mkdir()

    assert every_operation(backend) == [IO_ERROR] * 6
    assert not root.exists() or list(root.iterdir()) == []

    if is_replaced:
        root.rmdir()
    (tmp_path / "elsewhere").rename(root)
    assert every_operation(backend)[:4] == [OK] * 4


def test_folders_are_made_when_the_store_is_opened_and_again_if_one_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = opened(tmp_path)
    folder = backend.path(refs(1)[0].name).parent
    assert len([path for path in folder.parent.iterdir() if path.is_dir()]) == 256
    folder.rmdir()
    assert backend.batch_put_from(refs(1), 1.0) == [OK]


def test_what_cannot_be_looked_at_is_not_missing(tmp_path: Path) -> None:
    root = tmp_path / "l3"
    backend = opened(root)
    backend.batch_put_from(refs(1), 1.0)
    root.rename(tmp_path / "elsewhere")
    root.write_text("no folder")
    assert every_operation(backend) == [IO_ERROR] * 6
