"""Batches of 64 pages through the storage worker, against the backend's library called directly.

Both fill headers before they write and verify every page that they read, in one thread and in
turns, on the same service. The ratio is the median over pairs of rounds. File and NIXL read what is
in the page cache. Of a service that this machine does not have the reason is printed, and no
figure.
"""

import hashlib
import os
import platform
import queue
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import numpy as np
import pytest

from benchmarks.records.command_line import add_results, count, make_parser, run, writable_folder
from benchmarks.records.record import Figure, report
from benchmarks.stores.storage_direct import (
    Direct,
    DirectFiles,
    DirectMooncake,
    DirectNixl,
    DirectRedis,
)
from raydix.ids import BatchId, HostPageId, PageKey
from raydix.plugins.storage.nixl import NixlTransfers
from raydix.runtime.config.kv_layout import GroupKind, KvGroup, KvLayout
from raydix.runtime.config.l3 import MooncakeL3Section
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.host import ObjectsDone, ObjectStatus, ReadObjects, WriteObjects
from raydix.runtime.storage.backend import ObjectName, ObjectRef, StorageBackend
from raydix.runtime.storage.backends.file import FileBackend
from raydix.runtime.storage.backends.mooncake import MooncakeBackend
from raydix.runtime.storage.backends.redis import RedisBackend
from raydix.runtime.storage.namespace import Namespace, make_namespace
from raydix.runtime.storage.worker.object_header import ObjectIdentity, fill_header, verify_object
from raydix.runtime.storage.worker.worker import StorageWorker
from raydix.runtime.testing.order_queue import OrderQueue
from raydix.runtime.tiers.host_arena import HostArena
from tests.runtime.storage.backends.mooncake_service import MooncakeService
from tests.runtime.storage.backends.redis_server import RedisServer

BATCH = 64
SIZES = {"64KiB": 64 << 10, "1MiB": 1 << 20, "8MiB": 8 << 20}
MIN_RATIO = 0.85
_FEW_BYTES = 640 << 10
"""Objects of fewer bytes get more rounds: their batches are as short as what disturbs them."""
_RATIO = "of direct"
IO_URING = {"use_uring": "true"}
_MOONCAKE_BYTES = 2 << 30


@dataclass(frozen=True, slots=True)
class Subject:
    """A backend, and its library behind no adapter."""

    backend: StorageBackend
    direct: Direct


@dataclass(slots=True)
class Times:
    """Seconds of each batch, by operation."""

    read: list[float] = field(default_factory=list)
    write: list[float] = field(default_factory=list)


def layout_of(object_bytes: int) -> KvLayout:
    """Pages whose objects, header included, have this size."""
    group = KvGroup(
        kind=GroupKind.LATENT, layers=(0,), num_kv_heads=1, head_dim=(object_bytes - 64) // 4
    )
    return KvLayout(page_size=1, dtype="float32", dtype_bytes=4, groups=(group,))


@contextmanager
def file_subject(folder: Path) -> Iterator[Subject]:
    """One file per object."""
    yield Subject(FileBackend(folder / "l3"), DirectFiles(folder / "direct"))


@contextmanager
def nixl_subject(folder: Path) -> Iterator[Subject]:
    """The POSIX plugin with io_uring."""
    pytest.importorskip("nixl._api", reason="nixl is not installed", exc_type=ImportError)
    backend = FileBackend(folder / "l3", transfers=NixlTransfers("POSIX", IO_URING))
    yield Subject(backend, DirectNixl(folder / "direct", IO_URING))


@contextmanager
def mooncake_subject(folder: Path) -> Iterator[Subject]:
    """A master and a lender of memory in processes of their own, over TCP."""
    service = MooncakeService(_MOONCAKE_BYTES)
    try:
        backend = MooncakeBackend(MooncakeL3Section(backend="mooncake", master=service.address))
        yield Subject(backend, DirectMooncake(service.address))
    finally:
        service.kill()


@contextmanager
def redis_subject(folder: Path) -> Iterator[Subject]:
    """A server in a process of its own, over TCP; the library is our own client."""
    server = RedisServer()
    try:
        yield Subject(RedisBackend(server.url), DirectRedis(server.url))
    finally:
        server.kill()


Prepare = Callable[[Path], AbstractContextManager[Subject]]
SUBJECTS: dict[str, Prepare] = {
    "file": file_subject,
    "mooncake": mooncake_subject,
    "nixl": nixl_subject,
    "redis": redis_subject,
}


class Rig:
    """Owns: an arena of one batch, and the worker that moves it."""

    def __init__(self, subject: Subject, object_bytes: int) -> None:
        self.layout = layout_of(object_bytes)
        self.namespace: Namespace = make_namespace(b"benchmark", "1", self.layout)
        self.arena = HostArena.create(self.layout, BATCH * self.layout.host_page_bytes(0))
        self.subject = subject
        self.answers: queue.SimpleQueue[ObjectsDone] = queue.SimpleQueue()
        self.worker = StorageWorker(subject.backend, self.arena, self.namespace, self.answers.put)
        self.orders = OrderQueue()
        self.worker.serve(self.orders, self.orders.descriptor)
        subject.direct.open(self.arena.buffer)
        self.num_batches = 0

        random = np.random.default_rng(0)
        for page in range(BATCH):
            payload = self.arena.payload(HostPageId(page), 0)
            payload[:] = random.integers(0, 256, len(payload), dtype=np.uint8).data

    def close(self) -> None:
        """Give everything back."""
        self.subject.direct.close()
        self.orders.end()
        self.worker.close()
        self.orders.close()
        self.arena.close()

    def refs(self, round_index: int) -> list[ObjectRef]:
        """The batch of a round, which has new keys and the same pages."""
        geometry = self.arena.geometry
        return [
            ObjectRef(
                ObjectName(PageKey(hashlib.sha256(b"%d:%d" % (round_index, page)).digest()), 0),
                self.arena.page(HostPageId(page), 0),
                geometry.page_offset(HostPageId(page), 0),
            )
            for page in range(BATCH)
        ]

    def _identities(self, refs: Sequence[ObjectRef]) -> list[ObjectIdentity]:
        return [ObjectIdentity(self.namespace.digest, 0, ref.name.key) for ref in refs]

    def spoil(self) -> None:
        """Break all headers, so that no page passes which is not read."""
        for page in range(BATCH):
            self.arena.page(HostPageId(page), 0)[:64] = bytes(64)

    def by_worker(self, refs: Sequence[ObjectRef], times: Times) -> None:
        """Write and read a batch as HostMemory orders it."""
        keys = b"".join(ref.name.key for ref in refs)
        page_ids = int32_array(range(BATCH))

        for make, seconds in ((WriteObjects, times.write), (ReadObjects, times.read)):
            self.num_batches += 1
            order = make(
                batch_id=BatchId(self.num_batches),
                keys=keys,
                host_page_ids=page_ids,
                deadline_s=300.0,
            )

            start_s = time.perf_counter()
            self.orders.put(order)
            done = self.answers.get()
            seconds.append(time.perf_counter() - start_s)
            assert not any(done.statuses), set(done.statuses)
            self.spoil()
        self.subject.backend.delete([ref.name for ref in refs])

    def directly(self, refs: Sequence[ObjectRef], times: Times) -> None:
        """The same by the library alone."""
        start_s = time.perf_counter()
        for ref, identity in zip(refs, self._identities(refs), strict=True):
            fill_header(ref.page, identity)
        self.subject.direct.put(refs)
        times.write.append(time.perf_counter() - start_s)
        self.spoil()

        start_s = time.perf_counter()
        self.subject.direct.get(refs)
        for ref, identity in zip(refs, self._identities(refs), strict=True):
            assert verify_object(ref.page, identity) is ObjectStatus.OK
        times.read.append(time.perf_counter() - start_s)

        self.spoil()
        self.subject.direct.remove(refs)


def measure(name: str, subject: Subject, size: str, num_rounds: int) -> list[Figure]:
    """Rounds in pairs, the order within a pair alternating; the first pair warms up."""
    rig = Rig(subject, SIZES[size])
    by_worker, directly = Times(), Times()
    try:
        for index in range(num_rounds + 1):
            runs = [(rig.by_worker, by_worker), (rig.directly, directly)]
            for run, times in runs[:: 1 if index % 2 else -1]:
                run(rig.refs(index), times)
    finally:
        rig.close()

    figures: list[Figure] = []
    for operation in ("read", "write"):
        own, library = getattr(by_worker, operation)[1:], getattr(directly, operation)[1:]
        ratio = median(theirs / ours for ours, theirs in zip(own, library, strict=True))
        prefix = f"{name}_{size}_{operation}"
        figures += [
            Figure(
                name=f"{prefix}_speed", value=BATCH * SIZES[size] / 1e6 / median(own), unit="MB/s"
            ),
            Figure(
                name=f"{prefix}_p99", value=1e3 * float(np.percentile(own, 99)), unit="ms/batch"
            ),
            Figure(
                name=f"{prefix}_direct_p99",
                value=1e3 * float(np.percentile(library, 99)),
                unit="ms/batch",
            ),
            Figure(name=f"{prefix}_ratio", value=ratio, unit=_RATIO, min_value=MIN_RATIO),
        ]
    return figures


def main() -> int:
    """Measure, print the record, and return 1 below a bar."""
    parser = make_parser(__doc__)
    parser.add_argument("--backends", nargs="+", choices=SUBJECTS, default=list(SUBJECTS))
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument(
        "--rounds",
        type=count,
        default=20,
        help="pairs of batches for each backend and size; ten times as many of 64 KiB",
    )
    parser.add_argument(
        "--folder", type=writable_folder, help="for files; by default a temporary one"
    )
    add_results(
        parser, help="folder for the record of the ratios; speeds are this machine's", default=None
    )
    arguments = parser.parse_args()

    figures: list[Figure] = []
    left_out: dict[str, str] = {}
    for name in arguments.backends:
        with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
            try:
                for size in arguments.sizes:
                    with SUBJECTS[name](Path(folder) / size) as subject:
                        num_rounds = arguments.rounds * max(1, _FEW_BYTES // SIZES[size])
                        figures += measure(name, subject, size, num_rounds)
            except pytest.skip.Exception as reason:
                left_out[name] = str(reason)
                print(f"{name}: left out, {reason}", file=sys.stderr)

    config = {
        "device": f"{platform.machine()} machine with {len(os.sched_getaffinity(0))} cores",
        "batch": BATCH,
        "rounds": arguments.rounds,
        "sizes": arguments.sizes,
        "left_out": left_out,
    }
    return report("storage", config, figures, keep_in=arguments.results, kept_unit=_RATIO)


if __name__ == "__main__":
    run(main)
