"""How a rank on a GPU gives its share of a load to its peers, and waits on the device for theirs.

Every rank counts the runs of layers that have shared pages, in the order of the loads, which is the
same on all of them. It writes the count into its peers' memory once its share of a run is there.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from raydix.errors import ConfigError
from raydix.kernels.pages.page_push import (
    ALIGNMENT_BYTES,
    PeerCounters,
    PoolPart,
    compile_pushes,
    meet_peers,
    push_pages,
)
from raydix.runtime.messages.arrays import Int32Array
from raydix.runtime.tiers.transfers import LayerCopy, Transfer


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerAddresses:
    """Where this device finds one peer's memory."""

    pools: dict[int, int]
    """The address of the peer's pool, by shared group."""
    counters: int
    """The address of the peer's counters, int32, one per rank."""


class CudaPeers:
    """Owns: the stream on which shares are given away and awaited, and the count of runs."""

    def __init__(
        self,
        rank: int,
        pools: dict[int, Tensor],
        counters: Tensor,
        peers: Sequence[PeerAddresses],
        memory: object,
    ) -> None:
        """`pools`: of the shared groups, and `counters`: int32, one per rank, all of them zero.

        `peers`: all other ranks; `memory` keeps theirs mapped. Raises ConfigError if pages are
        oddly aligned.
        """
        self._memory = memory
        for pool in pools.values():
            _require_alignment(pool)
        self._pools = pools
        self._num_runs = 0

        device = counters.device
        self.stream = torch.cuda.Stream(device, priority=-1)
        self._peer_pools = {
            group: torch.tensor([peer.pools[group] for peer in peers], device=device)
            for group in pools
        }
        own_offset = rank * counters.element_size()
        self._counters = PeerCounters(
            own=counters,
            at_peers=torch.tensor([peer.counters + own_offset for peer in peers], device=device),
            # In host memory: a write to the device might queue up behind the kernel that waits.
            given_up=torch.zeros(1, dtype=torch.int32, pin_memory=True),
            rank=rank,
        )
        compile_pushes(list(pools.values()), list(self._peer_pools.values()), self._counters)

    def exchange(self, transfer: Transfer, runs: Sequence[Sequence[LayerCopy]]) -> Iterator[None]:
        """Run after run, once its copies are enqueued on the current stream; yields after each.

        What is enqueued on `stream` then comes after the shares of all ranks. The ranks must ask
        for the same loads in the same order.
        """
        copies = torch.cuda.current_stream(self.stream.device)
        with torch.cuda.stream(self.stream):
            page_ids = {
                group: _to_device(pages.page_ids, self.stream.device)
                for group, pages in transfer.groups.items()
                if group in self._pools
            }

        for run in runs:
            self.stream.wait_stream(copies)
            with torch.cuda.stream(self.stream):
                self._exchange_run(run, page_ids)
            yield

    def give_up(self) -> None:
        """Wait for no peer from now on, on the device either."""
        self._counters.given_up.fill_(1)

    def _exchange_run(self, run: Sequence[LayerCopy], page_ids: dict[int, Tensor]) -> None:
        groups = sorted({copy.group for copy in run} & page_ids.keys())
        if not groups:
            return

        for group in groups:
            layers = [copy.index for copy in run if copy.group == group]
            part = PoolPart(pool=self._pools[group], first_layer=layers[0], num_layers=len(layers))
            if len(page_ids[group]):
                push_pages(part, page_ids[group], self._peer_pools[group])

        self._num_runs += 1
        count = (self._num_runs + (1 << 31)) % (1 << 32) - (1 << 31)
        meet_peers(self._counters, count)


def _to_device(page_ids: Int32Array, device: torch.device) -> Tensor:
    return torch.tensor(page_ids).pin_memory().to(device, non_blocking=True)


def _require_alignment(pool: Tensor) -> None:
    layer_bytes = pool.stride(1) * pool.element_size()
    if layer_bytes % ALIGNMENT_BYTES:
        raise ConfigError(
            f"a layer of a latent page has {layer_bytes} bytes; with tensor parallelism a multiple "
            f"of {ALIGNMENT_BYTES} is expected. Set cache.page_size to {ALIGNMENT_BYTES}."
        )
