"""The lanes that step together, because they share experts: their sizes in a step, and who sends
which rows.

Whatever all ranks have to choose alike follows from the sizes of all lanes, which every plan has.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from raydix.errors import AccountingError
from raydix.moe.dispatch.protocol import DispatchForm, DispatchSizes
from raydix.moe.sent_rows import SentRows
from raydix.runtime.messages.plan import StepPlan
from raydix.runtime.model.decoder.decoder import Decoder
from raydix.runtime.model.steps.step_shapes import StepShape


@dataclass(frozen=True, slots=True)
class LaneSizes:
    """Rows and tokens of a step, by lane of its step group."""

    rows: tuple[int, ...]
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPlace:
    """A rank's place in its step group: among the ranks that share experts, lane by lane."""

    rank: int
    num_ranks: int
    ranks_per_lane: int
    max_tokens: int
    """The most tokens that a rank sends."""
    captured_forms: frozenset[DispatchForm]
    """The forms of dispatch that a CUDA graph may capture, as the `Dispatcher` says."""

    @property
    def num_lanes(self) -> int:
        """Lanes that step together."""
        return self.num_ranks // self.ranks_per_lane

    @property
    def lane(self) -> int:
        """The lane of this rank."""
        return self.rank // self.ranks_per_lane

    def exact(self, tokens: Sequence[int], stream: torch.cuda.Stream | None = None) -> SentRows:
        """What this rank sends of a batch with so many tokens in each lane.

        For `stream` see `SentRows`.
        """
        sizes = tuple(
            length for each in tokens for length in _slice_lengths(each, self.ranks_per_lane)
        )
        length = -(-tokens[self.lane] // self.ranks_per_lane)
        return self._sent(length, DispatchSizes(sizes), stream=stream)

    def captures(self, shape: StepShape) -> bool:
        """Can steps of a shape be captured, and buffers hold what each lane sends?"""
        sizes = self.padded(shape).sizes
        return sizes.form in self.captured_forms and max(sizes.tokens_R) <= self.max_tokens

    def padded(self, shape: StepShape, is_padding_T: Tensor | None = None) -> SentRows:
        """What this rank sends in a step of a shape that all lanes take, padding included.

        `is_padding_T`: see `SentRows`; None: what the lane's rows lack of the shape is padding.
        """
        length = -(-shape.num_tokens // self.ranks_per_lane)
        form = DispatchForm.NORMAL if shape.num_prompt_tiles else DispatchForm.LOW_LATENCY
        sizes = DispatchSizes((length,) * self.num_ranks, form)
        return self._sent(length, sizes, is_padding_T=is_padding_T)

    def _sent(
        self,
        length: int,
        sizes: DispatchSizes,
        *,
        is_padding_T: Tensor | None = None,
        stream: torch.cuda.Stream | None = None,
    ) -> SentRows:
        """A slice of the lane's rows, which its ranks cut into slices of this length."""
        return SentRows(
            first=self.rank % self.ranks_per_lane * length,
            num_rows=sizes.tokens_R[self.rank],
            sizes=sizes,
            is_padding_T=is_padding_T,
            stream=stream,
        )


def group_place_of(decoder: Decoder) -> GroupPlace | None:
    """The lanes with which this decoder shares experts; None: it has them to itself."""
    if decoder.experts is None:
        return None
    ranks = decoder.experts.ranks
    return GroupPlace(
        rank=ranks.rank,
        num_ranks=ranks.size,
        ranks_per_lane=decoder.collectives.size,
        max_tokens=ranks.max_tokens,
        captured_forms=decoder.experts.dispatcher.captured_forms,
    )


def read_lane_sizes(plan: StepPlan, place: GroupPlace | None) -> LaneSizes:
    """The sizes of all lanes. Raises AccountingError if the plan contradicts itself or `place`."""
    own_rows, own_tokens = len(plan.row_slots), int(plan.row_num_tokens.sum())
    num_lanes = 1 if place is None else place.num_lanes
    if num_lanes == 1 and not len(plan.group_tokens):
        return LaneSizes((own_rows,), (own_tokens,))

    sizes = LaneSizes(tuple(plan.group_rows.tolist()), tuple(plan.group_tokens.tolist()))
    # A plan that only moves pages need not speak of the other lanes.
    if not sizes.rows and not sizes.tokens and not own_rows:
        return LaneSizes((0,) * num_lanes, (0,) * num_lanes)

    lane = 0 if place is None else place.lane
    if len(sizes.rows) != num_lanes or len(sizes.tokens) != num_lanes:
        raise AccountingError(
            f"Plan {plan.step} tells the rows of {len(sizes.rows)} lanes and the tokens of "
            f"{len(sizes.tokens)}; expected {num_lanes}, which step together."
        )
    if (sizes.rows[lane], sizes.tokens[lane]) != (own_rows, own_tokens):
        raise AccountingError(
            f"Plan {plan.step} has {own_rows} rows of {own_tokens} tokens, and tells the others of "
            f"{sizes.rows[lane]} rows of {sizes.tokens[lane]}."
        )
    return sizes


def choose_shape(sizes: LaneSizes, shapes: Sequence[StepShape]) -> StepShape | None:
    """The first shape with room for the rows of every lane; None if there is none."""
    if len(sizes.rows) == 1:
        [rows], [tokens] = sizes.rows, sizes.tokens
        return next((shape for shape in shapes if shape.holds(rows, tokens)), None)
    lanes = list(zip(sizes.rows, sizes.tokens, strict=True))
    return next(
        (shape for shape in shapes if all(shape.holds(rows, tokens) for rows, tokens in lanes)),
        None,
    )


def _slice_lengths(num_tokens: int, num_slices: int) -> list[int]:
    """The lengths of slices as even as rounding up leaves them; the last may be short or empty."""
    length = -(-num_tokens // num_slices)
    return [max(0, min(length, num_tokens - first * length)) for first in range(num_slices)]
