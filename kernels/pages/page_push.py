# mypy: disable-error-code="no-untyped-def"
"""Writes of a rank's pages into the pools of its peers, and the counters that say how far it is.

The pools have the same shape on all ranks, and pages the same ids, so bytes go to the very place
that they have at home. Peers are reached by address, in memory that this device may write to.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl
from torch import Tensor

ALIGNMENT_BYTES = 16
_WORD_BYTES = 8
_BLOCK_WORDS = 512
_NUM_CTAS = 32
"""The number of programs: enough to outpace the host's link, few enough to spare the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPart:
    """Some layers, next to each other, of all pages of a pool."""

    pool: Tensor
    """The pool of a shared KV group, [P, L, ...], contiguous."""
    first_layer: int
    num_layers: int


def push_pages(part: PoolPart, page_ids: Tensor, peer_pools: Tensor) -> None:
    """Enqueue the copy of `part` of some pages into the same places of the peers' pools.

    `page_ids`: int32. `peer_pools`: int64, the address of each peer's pool. Both on the device of
    the pool. Raises ValueError if a layer is no multiple of 16 bytes or a dtype differs.
    """
    pool = part.pool
    layer_bytes = pool.stride(1) * pool.element_size()
    if not pool.is_contiguous() or layer_bytes % ALIGNMENT_BYTES:
        raise ValueError(
            f"A layer of {layer_bytes} bytes in a pool {tuple(pool.shape)}; expected a contiguous "
            f"one, and a multiple of {ALIGNMENT_BYTES} bytes."
        )
    if page_ids.dtype != torch.int32 or peer_pools.dtype != torch.int64:
        raise ValueError(
            f"Page ids are {page_ids.dtype}, addresses {peer_pools.dtype}; expected int32, int64."
        )

    layer_words = layer_bytes // _WORD_BYTES
    _push_pages[(_NUM_CTAS,)](
        pool.view(-1).view(torch.int64),
        peer_pools,
        page_ids,
        len(page_ids),
        layer_words * pool.shape[1],
        layer_words * part.first_layer,
        layer_words * part.num_layers,
        NUM_PEERS=len(peer_pools),
        BLOCK=_BLOCK_WORDS,
        num_warps=4,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerCounters:
    """How far the ranks are: each has a counter per rank, which that rank sets."""

    own: Tensor
    """This rank's counters, int32, one per rank, on this device. They may wrap around."""
    at_peers: Tensor
    """The address of this rank's counter in each peer's memory, int64, on this device."""
    given_up: Tensor
    """One int32 in pinned host memory: as soon as it is not 0, the waits for peers end."""
    rank: int


def meet_peers(counters: PeerCounters, value: int) -> None:
    """Enqueue: set this rank's counter at all peers, then hold the stream back for theirs.

    Peers that see the value see all that was enqueued before, done. The stream goes on once the
    counters of all of them are at `value` or past it.
    """
    _meet_peers[(1,)](
        counters.own,
        counters.at_peers,
        counters.given_up,
        value,
        counters.rank,
        NUM_RANKS=len(counters.own),
        num_warps=1,
    )


def compile_pushes(
    pools: Sequence[Tensor], peer_pools: Sequence[Tensor], counters: PeerCounters
) -> None:
    """Launch every variant of the kernels over nothing, so that no load waits for a compiler."""
    device = counters.own.device
    no_pages = torch.zeros(0, dtype=torch.int32, device=device)
    for pool, addresses in zip(pools, peer_pools, strict=True):
        push_pages(PoolPart(pool=pool, first_layer=0, num_layers=1), no_pages, addresses)

    # Of counters that no peer looks at.
    own = torch.zeros_like(counters.own)
    at_peers = torch.full_like(counters.at_peers, own.data_ptr())
    meet_peers(replace(counters, own=own, at_peers=at_peers), 0)
    torch.cuda.synchronize(device)


@triton.jit(do_not_specialize=["num_pages", "page_words", "first_word", "piece_words"])
def _push_pages(
    pool_ptr,
    peer_pools_ptr,
    page_ids_ptr,
    num_pages,
    page_words,
    first_word,
    piece_words,
    NUM_PEERS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A fixed grid walks (page, block); sizes are in int64 words, even numbers all of them."""
    blocks = tl.cdiv(piece_words, BLOCK)
    for work in range(tl.program_id(0), num_pages * blocks, tl.num_programs(0)):
        page = tl.load(page_ids_ptr + work // blocks).to(tl.int64)
        word = work % blocks * BLOCK + tl.arange(0, BLOCK)
        inside = word < tl.multiple_of(piece_words, 2)
        start = tl.multiple_of(page * page_words + first_word, 2)
        value = tl.load(pool_ptr + start + word, mask=inside, cache_modifier=".cg")
        for peer in tl.static_range(NUM_PEERS):
            peer_ptr = tl.load(peer_pools_ptr + peer).to(tl.pointer_type(tl.int64), bitcast=True)
            peer_ptr = tl.multiple_of(peer_ptr, 16)
            tl.store(peer_ptr + start + word, value, mask=inside, cache_modifier=".cs")


@triton.jit(do_not_specialize=["value", "rank"])
def _meet_peers(counters_ptr, at_peers_ptr, given_up_ptr, value, rank, NUM_RANKS: tl.constexpr):
    """One warp. What came before on the stream is done; the release shows it to peers first.

    Differences are taken in int32, so that counters may wrap around.
    """
    for peer in tl.static_range(NUM_RANKS - 1):
        address = tl.load(at_peers_ptr + peer)
        counter_ptr = address.to(tl.pointer_type(tl.int32), bitcast=True)
        tl.atomic_xchg(counter_ptr, value, sem="release", scope="sys")

    for peer in tl.static_range(NUM_RANKS):
        if peer != rank:
            seen = tl.atomic_add(counters_ptr + peer, 0, sem="acquire", scope="sys")
            given_up = tl.load(given_up_ptr, volatile=True)
            while (seen - value < 0) & (given_up == 0):
                seen = tl.atomic_add(counters_ptr + peer, 0, sem="acquire", scope="sys")
                given_up = tl.load(given_up_ptr, volatile=True)
