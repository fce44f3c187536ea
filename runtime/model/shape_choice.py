"""Which captured shapes a decoder has, and which of them a step takes."""

from collections.abc import Callable, Sequence

from raydix.runtime.model.decoder import Decoder
from raydix.runtime.model.group_place import GroupPlace, LaneSizes, choose_shape
from raydix.runtime.model.step_rows import StepRows
from raydix.runtime.model.step_shapes import (
    StepShape,
    choose_prompt_shape,
    decode_shapes,
    extension_shapes,
    prompt_shapes,
)


def shapes_of(
    decoder: Decoder, group: GroupPlace | None, max_rows: int, max_model_len: int
) -> tuple[StepShape, ...]:
    """Shapes of the steps that are captured; a step takes the first that holds it."""
    extensions = extension_shapes(max_model_len, decoder.ops.extension_tokens)
    prompts: tuple[StepShape, ...] = ()
    # Those that share experts, or layers, would have to send as many tokens in one graph.
    if group is None and decoder.collectives.size == 1:
        prompts = prompt_shapes(max_rows, min(decoder.ops.tile_tokens, max_model_len))
    return (*decode_shapes(max_rows), *extensions, *prompts)


def choose_step_shape(
    decoder: Decoder,
    shapes: Sequence[StepShape],
    rows: StepRows,
    sizes: LaneSizes,
    on_layer: Callable[[int], None] | None,
) -> StepShape | None:
    """That by which a step with these rows is replayed; None: it is not.

    One that waits for a load (`on_layer`) is replayed layer by layer if it can be, so that most of
    it is done when the load is.
    """
    small = choose_shape(sizes, shapes)
    if small is not None and on_layer is None:
        return small
    return _choose_layered(decoder, shapes, rows) or small


def _choose_layered(
    decoder: Decoder, shapes: Sequence[StepShape], rows: StepRows
) -> StepShape | None:
    shape = choose_prompt_shape(rows.num_tokens, shapes)
    if shape is None:
        return None
    # How far a row's latents are expanded depends on its context, which no graph knows.
    _, expanded = decoder.divide_rows(rows.attention_rows(rows.num_tokens > 1))
    return None if expanded else shape
