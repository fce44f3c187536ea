"""Page copies between a CUDA device and the arena, on two side streams, one per direction."""

import importlib.util
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from raydix.errors import AccountingError
from raydix.ids import HostPageId
from raydix.kernels.pages.page_codec import Codec
from raydix.kernels.reference.page_codec import decode_pages, encode_pages
from raydix.runtime.cache.host.arena_geometry import ArenaGeometry
from raydix.runtime.config.kv_layout import OBJECT_HEADER_BYTES
from raydix.runtime.config.kv_shard import KvShard
from raydix.runtime.messages.plan import PageCopies
from raydix.runtime.tiers.arena_registration import ArenaRegistration
from raydix.runtime.tiers.host_arena import HostArena
from raydix.runtime.tiers.layer_runs import layer_runs
from raydix.runtime.tiers.transfers import (
    Delay,
    Direction,
    LayerCopy,
    OnDone,
    OnError,
    Transfer,
    TransferDone,
    TransferTable,
    no_delay,
    require_peers,
)

if TYPE_CHECKING:
    from raydix.runtime.tiers.cuda_peers import CudaPeers
    from raydix.runtime.tiers.kernel_copies import KernelCopies

logger = logging.getLogger(__name__)

_FIRST_WITH_FP8 = (8, 9)
"""The first compute capability with FP8."""


class _Job:
    """A transfer on its way."""

    def __init__(
        self, transfer: Transfer, started_s: float, after: torch.cuda.Event | None
    ) -> None:
        """`after`: what its copies wait for. Loads wait for nothing.

        The pages that a load fills have left quarantine: no earlier work touches them.
        """
        self.transfer = transfer
        self.runs = layer_runs(transfer)
        self.started_s = started_s
        self.after = after
        self.enqueued_s = 0.0
        self.began = torch.cuda.Event(enable_timing=True, blocking=True)
        # A thread that waits for a blocking event sleeps, and leaves its core to others.
        self.arrived = [torch.cuda.Event(enable_timing=True, blocking=True) for _ in self.runs]
        self.num_enqueued = 0
        """The number of runs whose event is recorded; guarded by the engine's lock."""

    def begin(self, stream: torch.cuda.Stream) -> None:
        """Enqueue the copies on this stream from now on."""
        self.enqueued_s = time.monotonic()
        self.began.record(stream)

    def note_enqueued(self) -> None:
        """Note that one more run is enqueued, and its event recorded."""
        self.num_enqueued += 1

    def runs_until(self, layer: int) -> int:
        """How many runs bring `layer` and all before it."""
        return sum(run[0].layer <= layer for run in self.runs)


_Jobs = queue.SimpleQueue[_Job | None]
"""The jobs of a thread, which end with None."""


class CudaTransfers:
    """A `TransferEngine` whose copies the device carries out by itself.

    `wait_layer` is called with the compute stream current. Per direction one thread
    enqueues copies, as a copy engine takes about 1 us of the host per piece, and one waits for
    them. The caller waits only, in `wait_layer`, for a copy that is not enqueued yet.
    """

    def __init__(
        self,
        shard: KvShard,
        pools: Sequence[Tensor],
        arena: HostArena,
        *,
        on_done: OnDone,
        on_error: OnError,
        delay: Delay = no_delay,
        peers: "CudaPeers | None" = None,
    ) -> None:
        """`peers`: of a rank whose pools hold pages that are equal on all ranks."""
        require_peers(shard, peers)
        self._peers = peers
        self._is_abandoned = False
        self._device = pools[0].device
        self._table = TransferTable(shard, [len(pool) - 1 for pool in pools], arena.geometry)
        self._geometry = arena.geometry
        self._generations = arena.generations
        self._codec = shard.layout.codec
        self._pools = pools
        self._registration = ArenaRegistration(arena, self._device, on_error)
        slabs = self._registration.bytes[arena.geometry.slabs_offset :]
        self._kernel_copies = _make_kernel_copies(shard, pools, slabs, arena.geometry)
        self._on_done = on_done
        self._on_error = on_error
        self._delay = delay
        self._changed = threading.Condition()
        self._jobs: dict[int, _Job] = {}
        self._error: BaseException | None = None
        # Requests wait for loads, so their few blocks go before those of the model's next kernel.
        self._streams = {
            Direction.LOAD: torch.cuda.Stream(self._device, priority=-1),
            Direction.BACKUP: torch.cuda.Stream(self._device),
        }
        self._begun, self._enqueued = (
            {direction: _Jobs() for direction in Direction} for _ in range(2)
        )
        self._threads = [
            threading.Thread(
                target=self._guard,
                args=(body, direction),
                name=f"{name}-{direction.name}",
                daemon=True,
            )
            for direction in Direction
            for name, body in (("enqueue", self._enqueue_all), ("complete", self._complete_all))
        ]
        for thread in self._threads:
            thread.start()

    def start(self, loads: PageCopies, backups: PageCopies) -> None:
        """Begin copies and return, as `TransferEngine.start` says."""
        transfers = self._table.split(loads, backups)
        # A backup copies what the caller's stream has computed up to here.
        computed = torch.cuda.current_stream(self._device).record_event() if len(backups) else None
        started_s = time.monotonic()
        with self._changed:
            # All are checked before any begins, so that a plan is carried out wholly or not at all.
            for transfer in transfers:
                if transfer.transfer_id in self._jobs:
                    raise AccountingError(f"transfer {transfer.transfer_id} is in flight already")

            for transfer in transfers:
                after = computed if transfer.direction is Direction.BACKUP else None
                job = self._jobs[transfer.transfer_id] = _Job(transfer, started_s, after)
                self._begun[transfer.direction].put(job)

    def wait_layer(self, transfer_id: int, layer: int) -> None:
        """Make the current stream wait for a layer, as `TransferEngine.wait_layer` says.

        The caller itself waits only until the copies are enqueued.
        """
        with self._changed:
            job = self._jobs.get(transfer_id)
            if job is None or not (num_runs := job.runs_until(layer)):
                return
            self._changed.wait_for(lambda: job.num_enqueued >= num_runs or self._error is not None)
            self._raise_error()
        # The copies of one stream end in order, so this run brings all before it.
        torch.cuda.current_stream(self._device).wait_event(job.arrived[num_runs - 1])

    def drain(self) -> None:
        """Wait for all copies begun so far, as `TransferEngine.drain` says."""
        with self._changed:
            self._changed.wait_for(lambda: not self._jobs or self._error is not None)
            self._raise_error()

    def close(self) -> None:
        """Finish what has begun and end the threads, as `TransferEngine.close` says."""
        for jobs in self._begun.values():
            jobs.put(None)
        for thread in self._threads:
            thread.join()
        self._registration.close()

    def abandon_peers(self) -> None:
        """Wait for no peer from now on, as `TransferEngine.abandon_peers` says."""
        with self._changed:
            self._is_abandoned = True
        if self._peers is not None:
            self._peers.give_up()

    def wait_registered(self) -> None:
        """Return once the whole arena is registered, and all copies are asynchronous."""
        self._registration.wait()

    def _raise_error(self) -> None:
        if self._error is not None:
            raise RuntimeError("page copies have failed") from self._error

    def _enqueue_all(self, direction: Direction) -> None:
        try:
            while (job := self._begun[direction].get()) is not None:
                with torch.cuda.stream(self._streams[direction]):
                    self._enqueue(job)
                self._enqueued[direction].put(job)
        finally:
            self._enqueued[direction].put(None)

    def _enqueue(self, job: _Job) -> None:
        """Enqueue the copies on the current stream, run after run."""
        stream = torch.cuda.current_stream(self._device)
        if job.after is not None:
            stream.wait_event(job.after)
        job.begin(stream)

        copies = self._copy_runs(job.transfer, job.runs)
        shares = None
        if self._peers is not None and job.transfer.shared is not None:
            # Given away and awaited on another stream, beside the copies of the next run.
            stream, shares = self._peers.stream, self._peers.exchange(job.transfer, job.runs)
        for arrived in job.arrived:
            self._delay(job.transfer)
            next(copies)
            if shares is not None:
                next(shares)
            arrived.record(stream)
            with self._changed:
                job.note_enqueued()
                self._changed.notify_all()

    def _copy_runs(self, transfer: Transfer, runs: list[list[LayerCopy]]) -> Iterator[None]:
        """Enqueue run after run on the current stream; yields after each."""
        last_slab = self._geometry.slab_of(int(transfer.host_page_ids.max()))
        if self._kernel_copies is not None and last_slab < self._registration.num_slabs:
            yield from self._kernel_copies.enqueue(transfer, runs)
            return

        for run in runs:
            for copy in run:
                self._copy_layer(transfer, copy)
            yield

    def _copy_layer(self, transfer: Transfer, copy: LayerCopy) -> None:
        """Copy page by page, where memory is not registered yet or oddly aligned. Slow."""
        pool = self._pools[copy.group]
        pages = transfer.groups[copy.group]
        pairs = zip(pages.page_ids.tolist(), pages.host_page_ids.tolist(), strict=True)
        for page_id, host_page_id in pairs:
            page_offset = self._geometry.page_offset(HostPageId(host_page_id), copy.group)
            start = page_offset + OBJECT_HEADER_BYTES
            host_bytes = self._registration.bytes[start + copy.start : start + copy.stop]
            page_layer = pool[page_id, copy.index]

            # An unregistered source or target is staged by the driver, while the caller waits.
            is_registered = self._geometry.slab_of(host_page_id) < self._registration.num_slabs
            if transfer.direction is Direction.LOAD:
                _load(page_layer, host_bytes, self._codec, non_blocking=is_registered)
            else:
                _back_up(page_layer, host_bytes, self._codec, non_blocking=is_registered)

    def _complete_all(self, direction: Direction) -> None:
        ended_s = 0.0
        while (job := self._enqueued[direction].get()) is not None:
            ended = job.arrived[-1] if job.arrived else job.began
            ended.synchronize()
            # Measured by the device's clock, for this thread may wake up late.
            ended_s = max(job.enqueued_s, ended_s) + job.began.elapsed_time(ended) / 1e3
            self._end(job, ended_s)

    def _end(self, job: _Job, ended_s: float) -> None:
        """Report a transfer, unless a lost peer's share is missing, and forget it."""
        with self._changed:
            is_whole = job.transfer.shared is None or not self._is_abandoned
        # Reported before it is forgotten: once no job is left, `drain` says that all was reported.
        if is_whole:
            self._report(job, ended_s)
        with self._changed:
            del self._jobs[job.transfer.transfer_id]
            self._changed.notify_all()

    def _report(self, job: _Job, ended_s: float) -> None:
        self._on_done(
            TransferDone(
                transfer_id=job.transfer.transfer_id,
                is_stale=job.transfer.is_stale(self._generations),
                num_bytes=job.transfer.loaded_bytes,
                started_s=job.started_s,
                ended_s=ended_s,
            )
        )

    def _guard(self, body: Callable[[Direction], None], direction: Direction) -> None:
        try:
            torch.cuda.set_device(self._device)
            body(direction)
        except Exception as error:
            logger.exception("page copies failed")
            with self._changed:
                self._error = error
                self._changed.notify_all()
            self._on_error(error)


def _make_kernel_copies(
    shard: KvShard, pools: Sequence[Tensor], slabs: Tensor, geometry: ArenaGeometry
) -> "KernelCopies | None":
    """The kernel's copies; None, with a line in the log, if pages must be copied one by one."""
    if importlib.util.find_spec("triton") is None:
        logger.warning("pages are copied one by one, which is slow: triton is not installed")
        return None
    # Imported here, because only machines with a GPU have Triton.
    from raydix.runtime.tiers.kernel_copies import KernelCopies, is_aligned

    if not is_aligned(shard, pools):
        logger.warning(
            "pages are copied one by one, which is slow: a layer of a page is no multiple of 16 "
            "bytes"
        )
        return None
    if (
        shard.layout.codec is Codec.FP8
        and torch.cuda.get_device_capability(pools[0].device) < _FIRST_WITH_FP8
    ):
        logger.warning(
            "pages are copied one by one, which is slow: this GPU has no fp8; cache.codec int8 is "
            "fast"
        )
        return None
    return KernelCopies(shard, pools, slabs, geometry)


def _load(page_layer: Tensor, host_bytes: Tensor, codec: Codec, *, non_blocking: bool) -> None:
    """Copy one layer of a page from the arena."""
    if codec is Codec.NONE:
        page_layer.view(-1).view(torch.uint8).copy_(host_bytes, non_blocking=non_blocking)
    else:
        encoded = host_bytes[None].to(page_layer.device, non_blocking=non_blocking)
        page_layer.copy_(decode_pages(encoded, codec, page_layer.shape, page_layer.dtype)[0])


def _back_up(page_layer: Tensor, host_bytes: Tensor, codec: Codec, *, non_blocking: bool) -> None:
    """Copy one layer of a page to the arena."""
    encoded = (
        page_layer.view(-1).view(torch.uint8)
        if codec is Codec.NONE
        else encode_pages(page_layer[None], codec)[0]
    )
    host_bytes.copy_(encoded, non_blocking=non_blocking)
