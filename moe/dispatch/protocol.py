"""How tokens reach experts on other ranks, and their outputs come back.

Legend: T tokens of this rank, C hidden, K experts per token, R ranks, N rows that reach this rank.
"""

from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

import torch
from torch import Tensor


class DispatchForm(Enum):
    """Which of the two ways a step takes. All ranks take the same one."""

    NORMAL = auto()
    """For prompts: sizes of each rank, which the host knows."""
    LOW_LATENCY = auto()
    """For decodes: every rank sends as many rows."""


ALL_FORMS = frozenset(DispatchForm)


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchShape:
    """What buffers are made for; the same on every rank."""

    num_ranks: int
    slots_per_rank: int
    """Physical experts of a rank, empty slots included. Those of rank r start at r x this."""
    hidden_size: int
    experts_per_token: int
    max_tokens: int
    """Most tokens that one rank sends in the normal form."""
    max_low_latency_tokens: int
    """Most tokens that one rank sends in the low-latency form; 0: never."""
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class DispatchSizes:
    """Of one step; the same on every rank, and known on the host."""

    tokens_R: tuple[int, ...]
    """How many tokens each rank sends; in the low-latency form all send as many."""
    form: DispatchForm = DispatchForm.NORMAL


@dataclass(frozen=True, slots=True, eq=False)
class Received:
    """Rows that reach this rank, in any order, some of them perhaps for nobody here."""

    x_NC: Tensor
    weights_NK: Tensor
    """float32."""
    local_ids_NK: Tensor
    """Slots of this rank; -1: not here. int32 or int64."""


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
        """Those that CUDA graphs may hold.

        Of the normal one, a rank that replays a step meets others that enqueue it, so an exchange
        must not depend on how many there were before.
        """

    def send(
        self, x_TC: Tensor, weights_TK: Tensor, physical_ids_TK: Tensor, sizes: DispatchSizes
    ) -> Exchange:
        """Start the dispatch of this rank's tokens.

        `weights_TK`: float32. `physical_ids_TK`: int32 or int64; -1: nowhere. T is this rank's
        entry of `sizes`.
        """

    def close(self) -> None:
        """End it, from any thread: no rank waits for another any longer, though one may fail."""
