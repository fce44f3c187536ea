"""How tokens reach experts on other ranks, and their outputs come back.

Legend: T tokens of this rank, C hidden, K experts per token, R ranks, N rows that reach this rank.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

import torch
from torch import Tensor
from torch.distributed import Store

from raydix.kernels.fp8.form import packed_bytes
from raydix.moe.dispatch.transport import Transport


class DispatchForm(Enum):
    """Which of the two ways a step takes. All ranks take the same one."""

    NORMAL = auto()
    """The form for prompts: ranks send different numbers of tokens, which the host knows."""
    LOW_LATENCY = auto()
    """The form for decodes: every rank sends equally many rows."""


ALL_FORMS = frozenset(DispatchForm)


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchShape:
    """What buffers are made for; the same on every rank."""

    num_ranks: int
    seats_per_rank: int
    """The physical experts of a rank, empty seats included; rank r's start at r x this."""
    hidden_size: int
    experts_per_token: int
    max_tokens: int
    """The most tokens that one rank sends in the normal form."""
    max_low_latency_tokens: int
    """The most tokens that one rank sends in the low-latency form; 0: never."""
    dtype: torch.dtype
    transport: Transport = Transport.AUTO
    """How rows travel to experts; outputs come back as `hidden_size` numbers of `dtype`."""

    @property
    def sent_size(self) -> int:
        """The width of the rows that a dispatcher sends, in numbers of `sent_dtype`."""
        is_packed = self.transport is Transport.FP8
        return packed_bytes(self.hidden_size) if is_packed else self.hidden_size

    @property
    def sent_dtype(self) -> torch.dtype:
        """What those rows consist of."""
        return torch.uint8 if self.transport is Transport.FP8 else self.dtype


@dataclass(frozen=True, slots=True)
class DispatchSizes:
    """The sizes of one step, the same on every rank, and known on the host."""

    tokens_R: tuple[int, ...]
    """The number of tokens that each rank sends; in the low-latency form all send equally many."""
    form: DispatchForm = DispatchForm.NORMAL


@dataclass(frozen=True, slots=True, eq=False)
class Received:
    """Rows that reach this rank, in any order, some of them perhaps for nobody here."""

    x_NC: Tensor
    weights_NK: Tensor
    """The weight of each row's experts, float32."""
    local_ids_NK: Tensor
    """The seats on this rank of each row's experts, int32 or int64; -1: not here."""


class Exchange(Protocol):
    """One layer's tokens on their way. Each method is called once, in this order."""

    def receive(self) -> Received:
        """Finish the dispatch: what has reached this rank."""

    def send_back(self, out_NC: Tensor) -> None:
        """Start the combine with this rank's outputs: per row, the weighted sum over `Received`."""

    def combine(self) -> Tensor:
        """Finish it: per own token the sum over ranks, in their order, [T, C]."""


class Dispatcher(Protocol):
    """Every rank of a step group sends in every layer, as often and with the same sizes.

    Two exchanges may be open at once; they end in the order in which they began.
    """

    @property
    def captured_forms(self) -> frozenset[DispatchForm]:
        """The forms that CUDA graphs may hold.

        Of the normal one, a rank that replays a step meets others that enqueue it, so an exchange
        must not depend on how many there were before.
        """

    @property
    def buffer_bytes(self) -> int:
        """What its buffers take of its device beside torch's allocator, as far as that is known.

        L1 has so much less.
        """

    def send(
        self, x_TC: Tensor, weights_TK: Tensor, physical_ids_TK: Tensor, sizes: DispatchSizes
    ) -> Exchange:
        """Start the dispatch of this rank's tokens, rows of `sent_size` and `sent_dtype`.

        `weights_TK`: float32. `physical_ids_TK`: int32 or int64; -1: nowhere. T is this rank's
        entry of `sizes`.
        """

    def close(self) -> None:
        """End it, from any thread: no rank waits for another any longer, though one may fail."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """What a backend can serve, and how ranks connect once all of them can."""

    shape_obstacle: Callable[[DispatchShape], str | None]
    connect: Callable[[Store, int, DispatchShape, torch.device], Dispatcher]
