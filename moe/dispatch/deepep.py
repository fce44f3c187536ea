"""Dispatch by DeepEP's kernels for the GPUs of one host, which write peers' memory over NVLink.

Release 1.2.1 and the wheels `sgl-deep-ep` have the same `Buffer`. Its own low-latency kernels go
through an InfiniBand NIC even where NVLink would do; so decodes take the intranode kernels, too,
with room for every token of every rank, which lets CUDA graphs hold them. For the same room the
host waits for no counts in the normal form.
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

NUM_SMS = 24
"""The multiprocessors that the kernels take: 348 GB/s of dispatch between two H200, 2026-11-22."""
_RANKS = (2, 4, 8)
_MAX_SEATS = 1024
_MAX_EXPERTS_PER_TOKEN = 32
_ROW_BYTES = 16


def deepep_obstacle(shape: DispatchShape) -> str | None:
    """Why the kernels cannot serve this; None if they can."""
    if shape.num_ranks not in _RANKS:
        return f"its intranode kernels are for {_RANKS} ranks, here are {shape.num_ranks}"
    if shape.dtype is not torch.bfloat16:
        return f"its combine sums bfloat16 alone, here is {shape.dtype}"
    if shape.hidden_size * shape.dtype.itemsize % _ROW_BYTES:
        return f"rows must be multiples of {_ROW_BYTES} bytes, hidden_size is {shape.hidden_size}"
    if shape.seats_per_rank > _MAX_SEATS:
        return f"a rank can have {_MAX_SEATS} experts, here are {shape.seats_per_rank}"
    if shape.experts_per_token > _MAX_EXPERTS_PER_TOKEN:
        return f"a token can have {_MAX_EXPERTS_PER_TOKEN} experts, here {shape.experts_per_token}"
    return None


class DeepEpDispatcher:
    """A `Dispatcher` by DeepEP. In the normal form the kernels run beside the current stream's.

    A kernel that waits for a rank which has died ends after 100 s, in an error of the device.
    """

    captured_forms = frozenset({DispatchForm.LOW_LATENCY})
    """The forms that CUDA graphs may hold. The normal form was not tried in graphs."""

    def __init__(self, store: Store, rank: int, shape: DispatchShape, device: torch.device) -> None:
        """Connect; waits for every rank. The calling thread is on `device`, this rank's."""
        import deep_ep

        self._num_experts = shape.num_ranks * shape.seats_per_rank
        deep_ep.Buffer.set_num_sms(NUM_SMS)
        self._dispatch_config = deep_ep.Buffer.get_dispatch_config(shape.num_ranks)
        self._combine_config = deep_ep.Buffer.get_combine_config(shape.num_ranks)

        row_bytes = shape.hidden_size * shape.dtype.itemsize
        num_bytes = max(
            config.get_nvl_buffer_size_hint(row_bytes, shape.num_ranks)
            for config in (self._dispatch_config, self._combine_config)
        )
        self.buffer_bytes = int(num_bytes)
        group = StoreGroup("deepep", store, rank, shape.num_ranks)
        # Not destroyed by whoever forgets it: that waits for all ranks, dead ones included.
        self._buffer: Any | None = deep_ep.Buffer(
            None, num_nvl_bytes=num_bytes, explicitly_destroy=True, comm=group
        )
        group.swap(None)

    def send(
        self, x_TC: Tensor, weights_TK: Tensor, physical_ids_TK: Tensor, sizes: DispatchSizes
    ) -> Exchange:
        """Start the dispatch of this rank's tokens, as `Dispatcher.send` says."""
        if self._buffer is None:
            raise RuntimeError("the dispatcher of this rank is closed")
        ids_TK = physical_ids_TK.long().contiguous()
        # A graph's kernels run one after another anyway, and its memory is not used by others.
        timing: dict[str, Any] = {}
        is_beside = sizes.form is DispatchForm.NORMAL
        if is_beside:
            timing = {"previous_event": self._buffer.capture(), "async_finish": True}

        per_rank_R, _, per_expert_E, is_in_rank_TR, event = self._buffer.get_dispatch_layout(
            ids_TK, self._num_experts, **timing
        )
        if is_beside:
            timing["previous_event"] = event
        x_NC, ids_NK, weights_NK, _, handle, event = self._buffer.dispatch(
            x_TC.contiguous(),
            topk_idx=ids_TK,
            topk_weights=weights_TK.contiguous(),
            num_tokens_per_rank=per_rank_R,
            num_tokens_per_expert=per_expert_E,
            is_token_in_rank=is_in_rank_TR,
            num_worst_tokens=max(sum(sizes.tokens_R), 1),
            config=self._dispatch_config,
            **timing,
        )
        return _DeepEpExchange(
            self._buffer,
            self._combine_config,
            Received(x_NC, weights_NK, ids_NK),
            handle,
            event if is_beside else None,
        )

    def close(self) -> None:
        """End the dispatcher, as `Dispatcher.close` says.

        A kernel that waits already goes on waiting: see the class.
        """
        self._buffer = None


class _DeepEpExchange:
    """An `Exchange` by DeepEP."""

    def __init__(
        self, buffer: Any, combine_config: Any, received: Received, handle: Any, event: Any | None
    ) -> None:
        self._buffer = buffer
        self._config = combine_config
        self._received = received
        self._handle = handle
        self._event = event
        self._is_beside = event is not None
        self._out_TC: Tensor | None = None

    def receive(self) -> Received:
        """Return the rows that have reached this rank, as `Exchange.receive` says."""
        self._wait()
        return self._received

    def send_back(self, out_NC: Tensor) -> None:
        """Start the combine with this rank's outputs, as `Exchange.send_back` says."""
        timing: dict[str, Any] = {}
        if self._is_beside:
            timing = {"previous_event": self._buffer.capture(), "async_finish": True}
        self._out_TC, _, event = self._buffer.combine(
            out_NC.contiguous(), self._handle, config=self._config, **timing
        )
        if self._is_beside:
            self._event = event

    def combine(self) -> Tensor:
        """Return the sum of outputs for each token, as `Exchange.combine` says."""
        assert self._out_TC is not None, "send_back comes first"
        self._wait()
        return self._out_TC

    def _wait(self) -> None:
        """Let the current stream wait for the library's."""
        if self._event is not None:
            self._event.current_stream_wait()
