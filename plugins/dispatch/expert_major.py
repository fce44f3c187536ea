"""Dispatchers over libraries whose tokens land in one block of rows per local expert.

This is the low-latency contract of DeepEP, which NIXL-EP and Mooncake EP share. A rank's token
arrives once per expert of that rank; each expert has R x M places, of which the first
`num_rows_S` hold rows; the combine weighs them. Legend: S seats of this rank, R ranks, M most
tokens that a rank sends at once, P = R x M places of an expert, else as in `protocol`.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from raydix.moe.dispatch.protocol import (
    DispatchForm,
    DispatchShape,
    DispatchSizes,
    Exchange,
    Received,
)

_HIDDEN_SIZES = (2048, 2560, 3072, 4096, 5120, 6144, 7168, 8192)
_MAX_EXPERTS_PER_TOKEN = 11
_MAX_SEATS = 1024
MAX_TOKENS_AT_ONCE = 1024
"""The number of tokens up to which the libraries' kernels can count."""
MAX_BUFFER_BYTES = 4 * 2**30
"""The most memory of the normal form, which sends more tokens than fit in several parts."""


@dataclass(frozen=True, slots=True, eq=False)
class Landed:
    """What one dispatch has brought to this rank."""

    x_SPC: Tensor
    num_rows_S: Tensor
    """The number of rows of each seat, int32, on the device."""
    handle: Any
    """The library's own record of the dispatch, which its combine takes."""


class ExpertMajorBuffer(Protocol):
    """A library's memory for at most `max_tokens` tokens of each rank.

    Every rank calls as often and in the same order; two dispatches may come before the first one's
    combine.
    """

    @property
    def max_tokens(self) -> int:
        """M: the most tokens of each rank."""

    def dispatch(self, x_TC: Tensor, ids_TK: Tensor) -> Landed:
        """Send tokens; `ids_TK` int64, -1: nowhere. On the current stream."""

    def combine(self, out_SPC: Tensor, ids_TK: Tensor, weights_TK: Tensor, handle: Any) -> Tensor:
        """Each token's weighted sum over its experts, [T, C]. On the current stream."""


class NormalForm(Protocol):
    """How prompts travel: by the same library, or by any dispatcher of this process."""

    def send(
        self, x_TC: Tensor, weights_TK: Tensor, physical_ids_TK: Tensor, sizes: DispatchSizes
    ) -> Exchange:
        """Start the dispatch of this rank's tokens, as `Dispatcher.send` says."""

    def close(self) -> None:
        """End the dispatcher, as `Dispatcher.close` says."""


class ExpertMajor:
    """A `Dispatcher` whose low-latency form hands out the blocks as they are.

    The host waits for nothing. The libraries' kernels do wait for those of other ranks, and cannot
    be told to stop: after `close` this process may have to end for them to end.
    """

    def __init__(
        self,
        shape: DispatchShape,
        normal: NormalForm,
        low_latency: ExpertMajorBuffer | None,
        device: torch.device,
        *,
        buffer_bytes: int,
    ) -> None:
        """`buffer_bytes`: as of `Dispatcher`."""
        self.buffer_bytes = buffer_bytes
        self._normal = normal
        self._low_latency = low_latency
        self._is_closed = False
        if low_latency is not None:
            self._rows = _Rows(shape, low_latency.max_tokens, device)

    @property
    def captured_forms(self) -> frozenset[DispatchForm]:
        """The forms that CUDA graphs may hold, as `Dispatcher.captured_forms` says."""
        # The normal one was not tried in graphs.
        return frozenset({DispatchForm.LOW_LATENCY} if self._low_latency else ())

    def send(
        self, x_TC: Tensor, weights_TK: Tensor, physical_ids_TK: Tensor, sizes: DispatchSizes
    ) -> Exchange:
        """Start the dispatch of this rank's tokens, as `Dispatcher.send` says."""
        if self._is_closed:
            raise RuntimeError("the dispatcher of this rank is closed")

        if sizes.form is DispatchForm.NORMAL:
            return self._normal.send(x_TC, weights_TK, physical_ids_TK, sizes)
        assert self._low_latency is not None, "max_low_latency_tokens is 0"
        return _Blocks(self._low_latency, _tokens(x_TC, weights_TK, physical_ids_TK), self._rows)

    def close(self) -> None:
        """End the dispatcher, as `Dispatcher.close` says."""
        # The libraries' own ends are collective, and a rank that has died would be waited for.
        self._is_closed = True
        self._normal.close()


class InParts:
    """A `NormalForm` that hands out the rows in use, in parts of at most M tokens of each rank."""

    def __init__(self, shape: DispatchShape, buffer: ExpertMajorBuffer) -> None:
        self._shape = shape
        self._buffer = buffer

    def send(
        self, x_TC: Tensor, weights_TK: Tensor, physical_ids_TK: Tensor, sizes: DispatchSizes
    ) -> Exchange:
        """Start the dispatch of this rank's tokens, as `NormalForm.send` says."""
        tokens = _tokens(x_TC, weights_TK, physical_ids_TK)
        return _Parts(self._buffer, tokens, sizes.tokens_R, self._shape)

    def close(self) -> None:
        """Do nothing: `ExpertMajor` says why."""


class BufferPerExchange:
    """An `ExpertMajorBuffer` by which open exchanges never share a library's buffer.

    All ranks take buffers in the same order, since they open and end exchanges in the same one.
    """

    def __init__(self, buffers: Sequence[ExpertMajorBuffer]) -> None:
        """`buffers` are alike: as many as exchanges may be open."""
        self._free = deque(buffers)
        self.max_tokens = buffers[0].max_tokens

    def dispatch(self, x_TC: Tensor, ids_TK: Tensor) -> Landed:
        """Send tokens to the ranks of their experts, as `ExpertMajorBuffer.dispatch` says."""
        assert self._free, "two exchanges may be open at once"
        buffer = self._free.popleft()
        landed = buffer.dispatch(x_TC, ids_TK)
        return replace(landed, handle=(buffer, landed.handle))

    def combine(self, out_SPC: Tensor, ids_TK: Tensor, weights_TK: Tensor, handle: Any) -> Tensor:
        """Return each token's sum over its experts, as `ExpertMajorBuffer.combine` says."""
        buffer, own_handle = handle
        self._free.append(buffer)
        out_TC: Tensor = buffer.combine(out_SPC, ids_TK, weights_TK, own_handle)
        return out_TC


@dataclass(frozen=True, slots=True, eq=False)
class _Tokens:
    """A rank's own, as the libraries take them."""

    x_TC: Tensor
    weights_TK: Tensor
    ids_TK: Tensor

    def part(self, start: int, length: int) -> "_Tokens":
        """Some of the tokens, perhaps none."""
        end = start + length
        return _Tokens(self.x_TC[start:end], self.weights_TK[start:end], self.ids_TK[start:end])


def _tokens(x_TC: Tensor, weights_TK: Tensor, ids_TK: Tensor) -> _Tokens:
    return _Tokens(x_TC.contiguous(), weights_TK.contiguous(), ids_TK.long())


class _Rows:
    """The row that each place of a block belongs to; made once, so that graphs can read it."""

    def __init__(self, shape: DispatchShape, max_tokens: int, device: torch.device) -> None:
        num_places = shape.num_ranks * max_tokens
        self._seats_S1 = torch.arange(shape.seats_per_rank, device=device).view(-1, 1)
        self._places_P = torch.arange(num_places, device=device)
        self._nobody = torch.tensor(-1, device=device)
        self.ones_N1 = torch.ones(shape.seats_per_rank * num_places, 1, device=device)

    def local_ids(self, num_rows_S: Tensor) -> Tensor:
        """The seat of each place in use, [S x P, 1]; -1 for the others."""
        is_used_SP = self._places_P < num_rows_S.view(-1, 1)
        return torch.where(is_used_SP, self._seats_S1, self._nobody).view(-1, 1)


class _Blocks:
    """An `Exchange` of all places of all blocks, most of them empty."""

    def __init__(self, buffer: ExpertMajorBuffer, tokens: _Tokens, rows: _Rows) -> None:
        self._buffer = buffer
        self._tokens = tokens
        self._rows = rows
        self._landed = buffer.dispatch(tokens.x_TC, tokens.ids_TK)
        self._out_TC: Tensor | None = None

    def receive(self) -> Received:
        """Return the rows that have reached this rank, as `Exchange.receive` says."""
        x_NC = self._landed.x_SPC.flatten(0, 1)
        return Received(x_NC, self._rows.ones_N1, self._rows.local_ids(self._landed.num_rows_S))

    def send_back(self, out_NC: Tensor) -> None:
        """Start the combine with this rank's outputs, as `Exchange.send_back` says."""
        out_SPC = out_NC.view_as(self._landed.x_SPC).contiguous()
        tokens = self._tokens
        self._out_TC = self._buffer.combine(
            out_SPC, tokens.ids_TK, tokens.weights_TK, self._landed.handle
        )

    def combine(self) -> Tensor:
        """Return the sum of outputs for each token, as `Exchange.combine` says."""
        assert self._out_TC is not None, "send_back comes first"
        return self._out_TC


class _Parts:
    """An `Exchange` of several dispatches, whose rows are gathered: no empty place is computed."""

    def __init__(
        self,
        buffer: ExpertMajorBuffer,
        tokens: _Tokens,
        tokens_R: Sequence[int],
        shape: DispatchShape,
    ) -> None:
        self._buffer = buffer
        self._parts: list[_Part] = []
        max_tokens = buffer.max_tokens
        # All ranks take as many parts, the ones with fewer tokens some empty ones.
        for start in range(0, max(*tokens_R, 1), max_tokens):
            counts = [min(max(count - start, 0), max_tokens) for count in tokens_R]
            max_rows = sum(counts) * min(shape.experts_per_token, shape.seats_per_rank)
            part = tokens.part(start, max_tokens)
            landed = buffer.dispatch(part.x_TC, part.ids_TK)
            self._parts.append(_Part(part, landed, max_rows))
        self._out_TC: Tensor | None = None

    def receive(self) -> Received:
        """Return the rows that have reached this rank, as `Exchange.receive` says."""
        x_NC = torch.cat([part.x_NC for part in self._parts])
        ids_N1 = torch.cat([part.local_ids_N for part in self._parts]).view(-1, 1)
        return Received(x_NC, torch.ones_like(ids_N1, dtype=torch.float32), ids_N1)

    def send_back(self, out_NC: Tensor) -> None:
        """Start the combine with this rank's outputs, as `Exchange.send_back` says."""
        outs = out_NC.split([part.max_rows for part in self._parts])
        self._out_TC = torch.cat(
            [part.send_back(self._buffer, out) for part, out in zip(self._parts, outs, strict=True)]
        )

    def combine(self) -> Tensor:
        """Return the sum of outputs for each token, as `Exchange.combine` says."""
        assert self._out_TC is not None, "send_back comes first"
        return self._out_TC


class _Part:
    """One dispatch of the normal form: the rows in use of all blocks, and then some of nobody."""

    def __init__(self, tokens: _Tokens, landed: Landed, max_rows: int) -> None:
        self.max_rows = max_rows
        self._tokens = tokens
        self._handle = landed.handle
        self._shape_SPC = landed.x_SPC.shape
        num_seats, num_places, _ = self._shape_SPC

        # Row n belongs to the first seat whose rows, and those before it, are more than n.
        ends_S = landed.num_rows_S.long().cumsum(0)
        rows_N = torch.arange(max_rows, device=ends_S.device)
        seats_N = torch.searchsorted(ends_S, rows_N, right=True)
        is_used_N = seats_N < num_seats
        seats_N = seats_N.clamp(max=num_seats - 1)
        starts_S = ends_S - landed.num_rows_S
        places_N = seats_N * num_places + rows_N - starts_S[seats_N]

        # Rows of nobody read the first place, and are written behind the last one.
        self.local_ids_N = torch.where(is_used_N, seats_N, -1)
        self._targets_N = torch.where(is_used_N, places_N, num_seats * num_places)
        self.x_NC = landed.x_SPC.flatten(0, 1)[torch.where(is_used_N, places_N, 0)]

    def send_back(self, buffer: ExpertMajorBuffer, out_NC: Tensor) -> Tensor:
        """Put the rows into their places and combine."""
        num_seats, num_places, hidden_size = self._shape_SPC
        out_XC = out_NC.new_empty(num_seats * num_places + 1, hidden_size)
        out_XC[self._targets_N] = out_NC
        tokens = self._tokens
        return buffer.combine(
            out_XC[:-1].view(self._shape_SPC), tokens.ids_TK, tokens.weights_TK, self._handle
        )


def expert_major_obstacle(shape: DispatchShape) -> str | None:
    """Why the kernels cannot serve this; None if they can. The same for all that came of DeepEP."""
    if shape.dtype is not torch.bfloat16:
        return f"its kernels take bfloat16 alone, here is {shape.dtype}"
    if shape.hidden_size not in _HIDDEN_SIZES:
        return f"its kernels are for hidden_size {_HIDDEN_SIZES}, here is {shape.hidden_size}"
    if shape.experts_per_token > _MAX_EXPERTS_PER_TOKEN:
        return f"a token can have {_MAX_EXPERTS_PER_TOKEN} experts, here {shape.experts_per_token}"
    if shape.seats_per_rank > _MAX_SEATS:
        return f"a rank can have {_MAX_SEATS} experts, here are {shape.seats_per_rank}"
    if shape.max_low_latency_tokens > MAX_TOKENS_AT_ONCE:
        return (
            f"its kernels take {MAX_TOKENS_AT_ONCE} tokens at once, the low-latency form is to "
            f"take {shape.max_low_latency_tokens}"
        )
    return None


def low_latency_tokens(shape: DispatchShape) -> int:
    """M of the low-latency form: kernels that pack scales want R x M to be a multiple of 4."""
    return -(-shape.max_low_latency_tokens // 4) * 4


def part_tokens(shape: DispatchShape, bytes_of: "BufferBytes") -> int:
    """M of the normal form: a power of two whose buffer is no larger than 4 GiB."""
    tokens = MAX_TOKENS_AT_ONCE
    while tokens > 32 and (tokens >= 2 * shape.max_tokens or bytes_of(tokens) > MAX_BUFFER_BYTES):
        tokens //= 2
    return tokens


class BufferBytes(Protocol):
    """How much memory a library wants."""

    def __call__(self, max_tokens: int, /) -> int:
        """The memory for M tokens of each rank, in bytes."""
