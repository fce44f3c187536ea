"""Page copies on the host, in threads, in an order as scrambled as a GPU's copy streams may show.

Legend: X pages, H KV heads, 2 (key, value), S tokens per page, D head dim.
"""

import logging
import random
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray
from torch import Tensor

from raydix.errors import AccountingError
from raydix.kernels.pages.page_codec import Codec
from raydix.kernels.reference.page_codec import decode_pages, encode_pages
from raydix.runtime.cache.host.arena_geometry import ArenaGeometry
from raydix.runtime.config.kv_layout import OBJECT_HEADER_BYTES
from raydix.runtime.config.kv_shard import KvShard
from raydix.runtime.messages.arrays import Int32Array
from raydix.runtime.messages.plan import PageCopies
from raydix.runtime.tiers.cpu_peers import CpuPeers
from raydix.runtime.tiers.gpu_pool import as_bytes
from raydix.runtime.tiers.host_arena import HostArena
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

logger = logging.getLogger(__name__)

_POLL_S = 0.0002
"""The interval at which a waiting load looks at what peers have written."""

Bytes = NDArray[np.uint8]


def payload_view(buffer: memoryview, geometry: ArenaGeometry, group: int) -> Bytes:
    """`[slab, index, byte]`: the canonical pages of `group`, in the slabs that belong to it."""
    whole = np.frombuffer(buffer, dtype=np.uint8)
    return as_strided(
        whole[geometry.slabs_offset + OBJECT_HEADER_BYTES :],
        shape=(geometry.num_slabs, geometry.slab_pages(group), geometry.payload_bytes[group]),
        strides=(geometry.slab_bytes, geometry.page_bytes[group], 1),
    )


def _pool_range(copy: LayerCopy) -> slice:
    """The range of bytes in the pool for this layer of a page, if it is not encoded."""
    num_bytes = copy.stop - copy.start
    return slice(copy.index * num_bytes, (copy.index + 1) * num_bytes)


class _Job:
    """A transfer on its way; guarded by the engine's lock."""

    def __init__(self, transfer: Transfer, now_s: float) -> None:
        self.transfer = transfer
        self.started_s = now_s
        self.next_copy = 0
        self.num_arrived = 0
        """The number of shared layers of which all peers have written their shares."""

    def has_brought(self, layer: int) -> bool:
        """Whether `layer` and all before it are complete, with the shares of all ranks."""
        copies, shared = self.transfer.layer_copies, self.transfer.shared
        is_copied = self.is_copied or copies[self.next_copy].layer > layer
        has_shares = shared is None or self.num_arrived >= shared.num_layers_until(layer)
        return is_copied and has_shares

    @property
    def is_copied(self) -> bool:
        """Whether this rank has copied its part of all layers."""
        return self.next_copy >= len(self.transfer.layer_copies)

    @property
    def is_done(self) -> bool:
        """Whether all layers are complete."""
        shared = self.transfer.shared
        return self.is_copied and (shared is None or self.num_arrived == len(shared.layers))

    def advance(self) -> None:
        """Note that the next layer has been copied."""
        self.next_copy += 1

    def note_arrived(self, num_layers: int) -> None:
        """Note that `num_layers` shared layers have the shares of all peers."""
        self.num_arrived = num_layers


class CpuTransfers:
    """A `TransferEngine` over host memory.

    Each thread again and again takes a random transfer of those begun and copies its next layer:
    layers of one transfer arrive in order, transfers overlap and end in any order that `seed`
    brings about. A page takes a random time of up to `copy_delay_s` on top.
    """

    def __init__(
        self,
        shard: KvShard,
        pools: Sequence[Tensor],
        arena: HostArena,
        *,
        on_done: OnDone,
        on_error: OnError,
        copy_delay_s: float = 0.0,
        seed: int = 0,
        num_threads: int = 2,
        delay: Delay = no_delay,
        peers: CpuPeers | None = None,
    ) -> None:
        """`peers`: of a rank whose pools hold pages that are equal on all ranks."""
        require_peers(shard, peers)
        self._peers = peers
        self._table = TransferTable(shard, [len(pool) - 1 for pool in pools], arena.geometry)
        self._pages_per_slab = arena.geometry.pages_per_slab
        self._generations = arena.generations
        self._codec = shard.layout.codec
        self._pools = pools
        self._pool_bytes: list[Bytes] = [as_bytes(pool).numpy() for pool in pools]
        self._payloads = [
            payload_view(arena.buffer, arena.geometry, group) for group in range(len(pools))
        ]

        self._on_done = on_done
        self._on_error = on_error
        self._copy_delay_s = copy_delay_s
        self._hold = delay
        self._random = random.Random(seed)

        self._changed = threading.Condition()
        self._jobs: dict[int, _Job] = {}
        self._idle: list[_Job] = []
        self._error: BaseException | None = None
        self._is_closing = False
        self._has_peers = peers is not None
        """Whether there are peers to wait for; False once they are abandoned."""

        bodies = [(f"copies-{index}", (self._work,)) for index in range(num_threads)]
        watch = [] if peers is None else [("peers", (self._watch_peers, peers))]
        self._threads = [
            threading.Thread(target=self._guard, args=arguments, name=name, daemon=True)
            for name, arguments in (*bodies, *watch)
        ]
        for thread in self._threads:
            thread.start()

    def start(self, loads: PageCopies, backups: PageCopies) -> None:
        """Begin copies and return, as `TransferEngine.start` says."""
        transfers = self._table.split(loads, backups)
        now_s = time.monotonic()
        with self._changed:
            for transfer in transfers:
                if transfer.transfer_id in self._jobs:
                    raise AccountingError(f"transfer {transfer.transfer_id} is in flight already")
                job = self._jobs[transfer.transfer_id] = _Job(transfer, now_s)
                self._idle.append(job)
            self._changed.notify_all()

    def wait_layer(self, transfer_id: int, layer: int) -> None:
        """Wait for a layer of a load, as `TransferEngine.wait_layer` says.

        Blocks the caller, which does the model's work itself.
        """
        with self._changed:
            job = self._jobs.get(transfer_id)
            if job is not None:
                self._changed.wait_for(
                    lambda: (
                        job.has_brought(layer) or self._error is not None or self._is_abandoned(job)
                    )
                )
                self._raise_error()

    def drain(self) -> None:
        """Wait for all copies begun so far, as `TransferEngine.drain` says."""
        with self._changed:
            self._changed.wait_for(lambda: not self._jobs or self._error is not None)
            self._raise_error()

    def close(self) -> None:
        """Finish what has begun and end the threads, as `TransferEngine.close` says."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def abandon_peers(self) -> None:
        """Wait for no peer from now on, as `TransferEngine.abandon_peers` says."""
        with self._changed:
            self._has_peers = False
            self._changed.notify_all()

    def _is_abandoned(self, job: _Job) -> bool:
        return job.transfer.shared is not None and not self._has_peers

    def _raise_error(self) -> None:
        if self._error is not None:
            raise RuntimeError("page copies have failed") from self._error

    def _work(self) -> None:
        while (job := self._take()) is not None:
            self._hold(job.transfer)
            if job.transfer.layer_copies:
                self._delay(job)
                self._copy_layer(job)
            self._put_back(job)

    def _watch_peers(self, peers: CpuPeers) -> None:
        """Look again and again how far the peers are with the loads that all ranks share."""
        while (jobs := self._take_shared()) is not None:
            if not self._note_arrivals(peers, jobs):
                time.sleep(_POLL_S)

    def _guard(self, body: Callable[..., None], *arguments: CpuPeers) -> None:
        try:
            body(*arguments)
        except Exception as error:
            logger.exception("page copies failed")
            with self._changed:
                self._error = error
                self._changed.notify_all()
            self._on_error(error)

    def _take(self) -> _Job | None:
        with self._changed:
            self._changed.wait_for(lambda: self._idle or self._error is not None or self._may_end())
            if not self._idle or self._error is not None:
                return None
            index = self._random.randrange(len(self._idle))
            self._idle[index], self._idle[-1] = self._idle[-1], self._idle[index]
            return self._idle.pop()

    def _take_shared(self) -> list[_Job] | None:
        """The loads in flight that all ranks share, once there are any; None at the end."""

        def shared() -> list[_Job]:
            return [job for job in self._jobs.values() if job.transfer.shared is not None]

        with self._changed:
            self._changed.wait_for(lambda: shared() or self._error is not None or self._may_end())
            return None if self._error is not None else shared() or None

    def _note_arrivals(self, peers: CpuPeers, jobs: list[_Job]) -> bool:
        """Take in the peers' marks and end the loads that are complete. Whether there was news."""
        has_news = False
        for job in jobs:
            transfer = job.transfer
            assert transfer.shared is not None
            num_arrived = peers.num_arrived(transfer.transfer_id, transfer.shared)
            with self._changed:
                if num_arrived > job.num_arrived:
                    job.note_arrived(num_arrived)
                    has_news = True
                    self._changed.notify_all()
                is_done, is_abandoned = job.is_done, job.is_copied and not self._has_peers

            if is_done:
                peers.forget(transfer.shared)
                self._report(job)
            if is_done or is_abandoned:
                self._remove(job)
                has_news = True
        return has_news

    def _delay(self, job: _Job) -> None:
        if self._copy_delay_s > 0:
            with self._changed:
                fraction = self._random.random()
            num_pages = sum(len(pages.page_ids) for pages in job.transfer.groups.values())
            num_layers = len(job.transfer.layer_copies)
            time.sleep(fraction * self._copy_delay_s * num_pages / num_layers)

    def _may_end(self) -> bool:
        return self._is_closing and not self._jobs

    def _copy_layer(self, job: _Job) -> None:
        copy = job.transfer.layer_copies[job.next_copy]
        pages = job.transfer.groups[copy.group]
        slabs, indices = np.divmod(pages.host_page_ids, self._pages_per_slab)
        payloads, place = self._payloads[copy.group], (slabs, indices, slice(copy.start, copy.stop))
        if job.transfer.direction is Direction.LOAD:
            self._write_layer(copy, pages.page_ids, payloads[place])
            self._push_layer(job.transfer, copy)
        else:
            payloads[place] = self._read_layer(copy, pages.page_ids)

    def _read_layer(self, copy: LayerCopy, page_ids: Int32Array) -> Bytes:
        """One layer of pages of the pool, as the arena holds it."""
        if self._codec is Codec.NONE:
            return self._pool_bytes[copy.group][page_ids, _pool_range(copy)]
        kv_XH2SD = self._pools[copy.group][torch.from_numpy(page_ids.astype(np.int64)), copy.index]
        return encode_pages(kv_XH2SD, self._codec).numpy()

    def _write_layer(self, copy: LayerCopy, page_ids: Int32Array, layer_bytes: Bytes) -> None:
        """Fill one layer of pages of the pool from what the arena holds."""
        if self._codec is Codec.NONE:
            self._pool_bytes[copy.group][page_ids, _pool_range(copy)] = layer_bytes
            return
        pool = self._pools[copy.group]
        kv_XH2SD = decode_pages(
            torch.from_numpy(layer_bytes), self._codec, pool.shape[2:], pool.dtype
        )
        pool[torch.from_numpy(page_ids.astype(np.int64)), copy.index] = kv_XH2SD

    def _push_layer(self, transfer: Transfer, copy: LayerCopy) -> None:
        """Give all peers this rank's share of a layer, if they lack it."""
        shared = transfer.shared
        if self._peers is None or shared is None or copy.layer not in shared.layers:
            return
        # First the bytes, then the mark that says they are there: peers read without a lock.
        self._peers.push(copy.group, transfer.groups[copy.group].page_ids, _pool_range(copy))
        num_layers = shared.num_layers_until(copy.layer)
        self._peers.announce(transfer.transfer_id, shared, num_layers)

    def _put_back(self, job: _Job) -> None:
        with self._changed:
            job.advance()
            # Asked under the lock: once it is idle again another thread may finish it.
            is_copied = job.is_copied
            if not is_copied:
                self._idle.append(job)
            self._changed.notify_all()

        # Of a shared load the peers' shares may be missing still.
        if is_copied and job.transfer.shared is None:
            self._report(job)
            self._remove(job)

    def _report(self, job: _Job) -> None:
        self._on_done(
            TransferDone(
                transfer_id=job.transfer.transfer_id,
                is_stale=job.transfer.is_stale(self._generations),
                num_bytes=job.transfer.loaded_bytes,
                started_s=job.started_s,
                ended_s=time.monotonic(),
            )
        )

    def _remove(self, job: _Job) -> None:
        """Forget a transfer. Reported before it is forgotten, so that `drain` means reported."""
        with self._changed:
            del self._jobs[job.transfer.transfer_id]
            self._changed.notify_all()
