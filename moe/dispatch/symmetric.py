"""Dispatch by kernels that write other ranks' memory over NVLink, through torch symmetric memory.

Ranks are processes of one node, each of which sees all devices. NVLink multicast is not used.

Legend: as in `protocol`.
"""

import heapq
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.distributed import Store

from raydix.kernels.device.symmetric_group import name_group
from raydix.kernels.dispatch.arrivals import await_tokens
from raydix.kernels.dispatch.output_sum import sum_outputs
from raydix.kernels.dispatch.token_buffers import Arrivals, TokenBuffers, TokenLayout
from raydix.kernels.dispatch.token_inputs import ALIGNMENT_BYTES
from raydix.kernels.dispatch.token_push import push_outputs, push_tokens
from raydix.moe.dispatch.protocol import ALL_FORMS, DispatchShape, DispatchSizes, Received
from raydix.moe.dispatch.symmetric_sizes import (
    NUM_SETS,
    buffer_tensors,
    layout_of,
    memory_bytes,
    padded_bytes,
)

_WARM_UP_TOKENS = (1, 64, 128, 1024)
"""The numbers of tokens to warm up with: one for each variant of the kernels."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BufferSet:
    """What one exchange at a time uses."""

    buffers_R: tuple[TokenBuffers, ...]
    """The buffers of all ranks, as this rank reaches them."""
    arrivals: Arrivals


class SymmetricDispatcher:
    """`Dispatcher` for the current device. Its kernels run on the current stream.

    Owns: which sets of buffers no open exchange has. An exchange takes the first of them, whatever
    there was before, so that those of a step that is replayed here meet those of one that is not
    elsewhere. Its methods may be called on different streams if each one waits for the one before,
    and `send` for all that have ended.
    """

    captured_forms = ALL_FORMS

    def __init__(self, layout: TokenLayout, sets: tuple[BufferSet, ...], memory: object) -> None:
        """`memory` keeps that of the other ranks mapped."""
        self._layout = layout
        self._sets = sets
        self._free = list(range(len(sets)))
        self._memory = memory
        self._is_closed = False

    @property
    def buffer_bytes(self) -> int:
        """What its buffers take of its device, as `Dispatcher.buffer_bytes` says."""
        own = [each.buffers_R[self._layout.rank] for each in self._sets]
        return sum(buffers.num_bytes for buffers in own)

    def send(
        self, x_TC: Tensor, weights_TK: Tensor, physical_ids_TK: Tensor, sizes: DispatchSizes
    ) -> "SymmetricExchange":
        """Start the dispatch of this rank's tokens, as `Dispatcher.send` says.

        Raises RuntimeError once it is closed.
        """
        if self._is_closed:
            raise RuntimeError("the dispatcher of this rank is closed")
        rank = self._layout.rank
        if x_TC.shape[0] != sizes.tokens_R[rank]:
            raise ValueError(
                f"{x_TC.shape[0]} tokens of rank {rank}; expected {sizes.tokens_R[rank]}, as the "
                "sizes say."
            )

        assert self._free, "two exchanges may be open at once"
        index = heapq.heappop(self._free)
        used = self._sets[index]
        first_row = sum(sizes.tokens_R[:rank])
        push_tokens(x_TC, weights_TK, physical_ids_TK, used.buffers_R, self._layout, first_row)
        return SymmetricExchange(
            used,
            partial(heapq.heappush, self._free, index),
            self._layout,
            physical_ids_TK,
            first_row,
            sum(sizes.tokens_R),
        )

    def close(self) -> None:
        """End the dispatcher, as `Dispatcher.close` says.

        Kernels that wait for a rank go on without it, and so with garbage.
        """
        self._is_closed = True
        for each in self._sets:
            each.arrivals.given_up_1.fill_(1)


class SymmetricExchange:
    """An `Exchange` through symmetric memory."""

    def __init__(
        self,
        used: BufferSet,
        give_back: Callable[[], None],
        layout: TokenLayout,
        ids_TK: Tensor,
        first_row: int,
        num_rows: int,
    ) -> None:
        self._own = used.buffers_R[layout.rank]
        self._used = used
        self._give_back = give_back
        self._layout = layout
        self._ids_TK = ids_TK
        self._first_row = first_row
        self._num_rows = num_rows
        self._out_NC: Tensor | None = None

    def receive(self) -> Received:
        """Return the rows that have reached this rank, as `Exchange.receive` says.

        What it returns may be overwritten once outputs are sent back.
        """
        await_tokens(self._own, self._used.arrivals)
        rows = slice(self._num_rows)
        return Received(self._own.x_NC[rows], self._own.weights_NK[rows], self._own.ids_NK[rows])

    def send_back(self, out_NC: Tensor) -> None:
        """Start the combine with this rank's outputs, as `Exchange.send_back` says."""
        next_row = self._first_row + self._ids_TK.shape[0]
        push_outputs(out_NC, self._used.buffers_R, self._layout, next_row)
        self._out_NC = out_NC

    def combine(self) -> Tensor:
        """Return the sum of outputs for each token, as `Exchange.combine` says."""
        assert self._out_NC is not None
        self._give_back()
        return sum_outputs(
            self._out_NC,
            self._ids_TK,
            self._own,
            self._used.arrivals,
            self._layout,
            self._first_row,
        )


def connect_symmetric(
    store: Store, rank: int, shape: DispatchShape, device: torch.device
) -> SymmetricDispatcher:
    """Map the memory of all ranks; waits for every one. The calling thread is on `device`.

    Raises ValueError if rows are no multiple of 16 bytes.
    """
    # Imported here: only builds of torch for CUDA can use it.
    from torch.distributed import _symmetric_memory as symmetric_memory

    if shape.hidden_size * shape.dtype.itemsize % ALIGNMENT_BYTES:
        raise ValueError(
            f"Tokens have {shape.hidden_size} x {shape.dtype}; expected a multiple of "
            f"{ALIGNMENT_BYTES} bytes."
        )
    if rank == 0:
        # A name of its own: torch keeps names for as long as the process lives.
        store.set("symmetric_name", f"raydix-experts-{os.urandom(8).hex()}")
    name = store.get("symmetric_name").decode()
    group = name_group(name, store, rank, shape.num_ranks)

    memory = symmetric_memory.empty(memory_bytes(shape), dtype=torch.uint8, device=device)
    memory.zero_()
    torch.cuda.synchronize(device)
    # Nobody leaves it before all are there, and so before everyone's memory is zero.
    handle = symmetric_memory.rendezvous(memory, name)

    memories_R = [
        handle.get_buffer(peer, memory.shape, torch.uint8) for peer in range(shape.num_ranks)
    ]
    given_up_1 = torch.zeros(1, dtype=torch.int32, pin_memory=True)
    dispatcher = SymmetricDispatcher(
        layout_of(rank, shape),
        cut_sets(memories_R, shape, rank, given_up_1),
        (group, handle, memory),
    )
    _warm_up(dispatcher, shape, device)
    return dispatcher


def cut_sets(
    memories_R: Sequence[Tensor], shape: DispatchShape, rank: int, given_up_1: Tensor
) -> tuple[BufferSet, ...]:
    """Every rank's memory, `memory_bytes` of zeros, as its buffers."""
    buffers_R = [list(_cut(memory, shape)) for memory in memories_R]
    return tuple(
        BufferSet(
            buffers_R=tuple(buffers),
            arrivals=Arrivals(
                awaited_1=torch.zeros(1, dtype=torch.int32, device=buffers[rank].x_NC.device),
                given_up_1=given_up_1,
            ),
        )
        for buffers in zip(*buffers_R, strict=True)
    )


def _cut(memory: Tensor, shape: DispatchShape) -> Iterator[TokenBuffers]:
    first = 0
    for _ in range(NUM_SETS):
        tensors = {}
        for name, (size, dtype) in buffer_tensors(shape).items():
            part = memory[first : first + math.prod(size) * dtype.itemsize]
            tensors[name] = part.view(dtype).view(size)
            first += padded_bytes(size, dtype)
        yield TokenBuffers(**tensors)


def _warm_up(dispatcher: SymmetricDispatcher, shape: DispatchShape, device: torch.device) -> None:
    """Exchange tokens that go nowhere, so that no step waits for a compiler."""
    for wanted in _WARM_UP_TOKENS:
        num_tokens = min(wanted, shape.max_tokens)
        choices = (num_tokens, shape.experts_per_token)
        exchange = dispatcher.send(
            torch.zeros(num_tokens, shape.sent_size, dtype=shape.sent_dtype, device=device),
            torch.zeros(choices, device=device),
            torch.full(choices, -1, dtype=torch.int32, device=device),
            DispatchSizes((num_tokens,) * shape.num_ranks),
        )
        num_rows = len(exchange.receive().x_NC)
        exchange.send_back(
            torch.zeros(num_rows, shape.hidden_size, dtype=shape.dtype, device=device)
        )
        exchange.combine()
    torch.cuda.synchronize(device)
