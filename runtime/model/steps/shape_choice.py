"""Which captured shapes a decoder has, and which of them a step takes."""

from collections.abc import Callable, Sequence

from raydix.runtime.model.decoder.decoder import Decoder
from raydix.runtime.model.slots.request_slots import RequestSlots
from raydix.runtime.model.steps.group_place import GroupPlace, LaneSizes, choose_shape
from raydix.runtime.model.steps.step_rows import StepRows
from raydix.runtime.model.steps.step_shapes import (
    USUAL_PREFILL_TOKENS,
    StepShape,
    choose_prompt_shape,
    decode_shapes,
    extension_shapes,
    keeping_states,
    large_shapes,
    prompt_shapes,
)


def shapes_of(
    decoder: Decoder, place: GroupPlace | None, slots: RequestSlots, max_prefill_tokens: int
) -> tuple[StepShape, ...]:
    """Shapes of the steps that are captured; a step takes the first that holds it.

    `max_prefill_tokens`: those of prompts in a step.
    """
    max_rows, max_model_len = slots.max_slots, slots.max_model_len
    decodes = decode_shapes(max_rows)
    extensions = extension_shapes(max_model_len, decoder.ops.extension_tokens)
    tile_tokens = min(decoder.ops.tile_tokens, max_model_len)
    prompts = _shapes_of_prompts(
        max_rows,
        tile_tokens,
        max_prefill_tokens,
        has_latents=decoder.has_latents,
        shares_experts=place is not None,
    )
    if place is not None:
        prompts = tuple(shape for shape in prompts if place.captures(shape))
    shapes = (*decodes, *extensions, *prompts)
    return tuple(map(keeping_states, shapes)) if decoder.has_states else shapes


def _shapes_of_prompts(
    max_rows: int,
    tile_tokens: int,
    max_prefill_tokens: int,
    *,
    has_latents: bool,
    shares_experts: bool,
) -> tuple[StepShape, ...]:
    prompts = prompt_shapes(max_rows, tile_tokens)
    if shares_experts:
        # Lanes agree on a number of tokens alone, and buffers are as large as these.
        return prompts
    # A long row expands its latents, and no graph knows how far.
    if has_latents:
        max_prefill_tokens = min(max_prefill_tokens, USUAL_PREFILL_TOKENS)
    return prompts + large_shapes(max_rows, tile_tokens, max_prefill_tokens)


def most_captured_tokens(
    max_rows: int, max_prefill_tokens: int, *, has_latents: bool, shares_experts: bool
) -> int:
    """The tokens of the largest of `shapes_of`, or of one that is larger, before there is a model.

    Their number depends on no tile.
    """
    prompts = _shapes_of_prompts(
        max_rows,
        1,
        max_prefill_tokens,
        has_latents=has_latents,
        shares_experts=shares_experts,
    )
    return max(shape.num_tokens for shape in (*decode_shapes(max_rows), *prompts))


def choose_own_shape(
    decoder: Decoder,
    shapes: Sequence[StepShape],
    rows: StepRows,
    sizes: LaneSizes,
    on_layer: Callable[[int], None] | None,
) -> StepShape | None:
    """The shape by which a step of a lane by itself, of these sizes, is replayed; None: it is not.

    One that waits for a load (`on_layer`) is replayed layer by layer if it can be, so that most of
    it is done when the load is.
    """
    small = choose_shape(sizes, shapes)
    if small is not None and on_layer is None:
        return small
    prompts = choose_prompt_shape(rows.num_tokens, shapes)
    if prompts is not None and can_replay(decoder, prompts, rows):
        return prompts
    return small


def choose_common_shape(
    shapes: Sequence[StepShape], sizes: LaneSizes, is_halved: Callable[[int], bool]
) -> StepShape | None:
    """The shape of a step of lanes that share experts; None: each sends its own rows, or halves.

    All ranks choose alike, by what all know of each other. A lane whose rows it cannot replay
    computes them operation by operation, and sends as many rows as the others.
    """
    small, most = choose_shape(sizes, shapes), max(sizes.tokens)
    if small is not None or is_halved(most):
        return small
    prompts = (shape for shape in shapes if shape.num_prompt_tiles)
    return next((shape for shape in prompts if shape.num_tokens >= most), None)


def can_replay(decoder: Decoder, shape: StepShape, rows: StepRows) -> bool:
    """Whether a shape with enough tokens holds this lane's rows, be they what they may."""
    if not shape.num_prompt_tiles:
        return True
    if not shape.holds_prompts(rows.num_tokens):
        return False
    # How far a row's latents are expanded depends on its context, which no graph knows.
    _, expanded = decoder.divide_rows(rows.attention_rows(rows.num_tokens > 1))
    return not expanded
