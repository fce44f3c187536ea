"""Dispatch by MORI-EP, on AMD GPUs of one host.

Never run on its hardware: tests take a fake that keeps to the shapes which its source documents.
"""

from typing import Any

import torch
from torch import Tensor
from torch.distributed import Store

from raydix.moe.dispatch.protocol import (
    DispatchForm,
    DispatchShape,
    DispatchSizes,
    Exchange,
    Received,
)
from raydix.moe.dispatch.store_group import StoreGroup

_MAX_RANKS = 8


def mori_obstacle(shape: DispatchShape) -> str | None:
    """Why the kernels cannot serve this; None if they can."""
    if shape.num_ranks > _MAX_RANKS:
        return f"its kernels within a node are for {_MAX_RANKS} ranks, here are {shape.num_ranks}"
    if shape.dtype not in (torch.bfloat16, torch.float32):
        return f"its combine sums bfloat16 and float32, here is {shape.dtype}"
    return None


class MoriDispatcher:
    """A `Dispatcher` by MORI. Results stay in its memory until the next exchange but one."""

    buffer_bytes = 0
    """Not known: MORI's own settings say how large its heap is."""

    def __init__(self, store: Store, rank: int, shape: DispatchShape, device: torch.device) -> None:
        """Connect; waits for every rank. The calling thread is on `device`, this rank's."""
        import mori.ops
        import mori.shmem

        self._shape = shape
        self._rank = rank
        self._is_closed = False
        group = StoreGroup("mori", store, rank, shape.num_ranks)
        own = mori.shmem.shmem_get_unique_id() if rank == 0 else None
        unique_id = group.swap(own)[0]
        mori.shmem.shmem_init_attr(
            mori.shmem.MORI_SHMEM_INIT_WITH_UNIQUEID, rank, shape.num_ranks, unique_id
        )

        # Two of each form, for two exchanges that are open at once.
        self._normal = _Turns(mori.ops, shape, rank, shape.max_tokens)
        self._low_latency = None
        if shape.max_low_latency_tokens > 0:
            self._low_latency = _Turns(mori.ops, shape, rank, shape.max_low_latency_tokens)

        # No rank may write into memory that another one is still clearing.
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        group.swap(None)

    @property
    def captured_forms(self) -> frozenset[DispatchForm]:
        """The forms that CUDA graphs may hold, as `Dispatcher.captured_forms` says."""
        # Operations are taken in turn, and so depend on those before.
        return frozenset({DispatchForm.LOW_LATENCY} if self._low_latency else ())

    def send(
        self, x_TC: Tensor, weights_TK: Tensor, physical_ids_TK: Tensor, sizes: DispatchSizes
    ) -> Exchange:
        """Start the dispatch of this rank's tokens, as `Dispatcher.send` says."""
        if self._is_closed:
            raise RuntimeError("the dispatcher of this rank is closed")
        turns = self._normal
        if sizes.form is DispatchForm.LOW_LATENCY:
            assert self._low_latency is not None, "max_low_latency_tokens is 0"
            turns = self._low_latency

        operation = turns.next()
        ids_TK = physical_ids_TK.int().contiguous()
        x_MC, weights_MK, _, ids_MK, count_1 = operation.dispatch(
            x_TC.contiguous(), weights_TK.contiguous(), None, ids_TK
        )
        # Behind the rows that have come there is what earlier exchanges left.
        num_rows = sum(sizes.tokens_R)
        is_row_N = torch.arange(num_rows, device=ids_MK.device) < count_1
        local_NK = ids_MK[:num_rows] - self._rank * self._shape.seats_per_rank
        is_here_NK = (local_NK >= 0) & (local_NK < self._shape.seats_per_rank)
        local_NK = torch.where(is_here_NK & is_row_N.view(-1, 1), local_NK, -1)
        received = Received(x_MC[:num_rows], weights_MK[:num_rows], local_NK)
        return _MoriExchange(operation, received, ids_TK)

    def close(self) -> None:
        """End the dispatcher, as `Dispatcher.close` says.

        A kernel that waits goes on waiting until this process ends.
        """
        self._is_closed = True


class _Turns:
    """Two operations of the library, used in turn."""

    def __init__(self, ops: Any, shape: DispatchShape, rank: int, max_tokens: int) -> None:
        config = ops.EpDispatchCombineConfig(
            data_type=shape.dtype,
            rank=rank,
            world_size=shape.num_ranks,
            hidden_dim=shape.hidden_size,
            scale_dim=0,
            scale_type_size=1,
            max_token_type_size=shape.dtype.itemsize,
            max_num_inp_token_per_rank=max_tokens,
            num_experts_per_rank=shape.seats_per_rank,
            num_experts_per_token=shape.experts_per_token,
            kernel_type=ops.EpDispatchCombineKernelType.IntraNode,
            gpu_per_node=shape.num_ranks,
        )
        self._operations = [ops.EpDispatchCombineOp(config) for _ in range(2)]
        self._num_turns = 0

    def next(self) -> Any:
        """The one whose last exchange lies further back."""
        operation = self._operations[self._num_turns % 2]
        self._num_turns += 1
        return operation


class _MoriExchange:
    """An `Exchange` by MORI."""

    def __init__(self, operation: Any, received: Received, ids_TK: Tensor) -> None:
        self._operation = operation
        self._received = received
        self._ids_TK = ids_TK
        self._out_TC: Tensor | None = None

    def receive(self) -> Received:
        """Return the rows that have reached this rank, as `Exchange.receive` says."""
        return self._received

    def send_back(self, out_NC: Tensor) -> None:
        """Start the combine with this rank's outputs, as `Exchange.send_back` says."""
        # It adds the ranks' rows without weights, which the experts have applied.
        out_MC, _ = self._operation.combine(out_NC.contiguous(), None, self._ids_TK)
        self._out_TC = out_MC[: self._ids_TK.shape[0]]

    def combine(self) -> Tensor:
        """Return the sum of outputs for each token, as `Exchange.combine` says."""
        assert self._out_TC is not None, "send_back comes first"
        return self._out_TC
