"""A logit rule: something that changes the logits of some rows before they are sampled.

Rows that no rule concerns cost nothing: the step samples them with all others. The few others are
sampled again, from a copy of their logits that rules change one after another.

Legend: B rows of a block, V vocabulary, X slots, L tokens of a slot.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from torch import Tensor

from raydix.runtime.messages.plan import DeviceSampling
from raydix.runtime.model.staging.columns import Column, Columns

Kept = TypeVar("Kept")
ALWAYS = (1 << 63) - 1
"""An output position that no request reaches."""


@dataclass(frozen=True, slots=True)
class Asked(Generic[Kept]):
    """What a request asks of a rule."""

    kept: Kept
    """What the rule keeps, in the form in which it wants it back at each step of the request."""
    before: int = ALWAYS
    """The rule concerns the output tokens before this position, counted from 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block(Generic[Kept]):
    """Some rows that are sampled again together, on the host."""

    num_rows: int
    vocab_size: int
    slots: Column
    positions: Column
    """Which output token of its request each row samples, counted from 0."""
    asked: Mapping[int, Kept]
    """What was kept for each row that the rule concerns, by the row's index in the block."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BlockTokens:
    """The tokens so far of a block's rows, on the device."""

    tokens_XL: Tensor
    """int32, those of all slots: prompt, then output."""
    slots_B: Tensor
    num_prompt_tokens_B: Tensor
    num_tokens_B: Tensor
    max_tokens: int
    """The most that a row has."""


class LogitRule(Protocol[Kept]):
    """Decides on the host whom it concerns, and changes logits on the device.

    It holds no state: what it has to keep of a request is kept for it.
    """

    def read(self, sampling: DeviceSampling) -> Asked[Kept] | None:
        """What a request with these parameters asks of the rule; None: nothing."""

    def columns(self, block: Block[Kept]) -> Columns | None:
        """What `apply` needs on the device; None if it has nothing to do for the block.

        A block is made of rows that one rule or more concern. It is shown to all of them.
        """

    def apply(
        self, logits_BV: Tensor, columns: Mapping[str, Tensor], tokens: BlockTokens
    ) -> Tensor:
        """The changed logits, float32. Those given may be changed in place.

        Rows that the rule does not concern keep theirs. The host must not wait for the device.
        """

    def example(self, sampling: DeviceSampling) -> DeviceSampling:
        """The same parameters, which ask something of the rule from the first token on, too.

        By such requests warm-up compiles the rule's kernels and measures the memory it takes.
        """
