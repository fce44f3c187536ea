import numpy as np
import pytest

from raydix.runtime.model.steps.step_shapes import (
    EXTENSION_TOKENS,
    choose_prompt_shape,
    decode_shapes,
    extension_shapes,
    keeping_states,
    large_shapes,
    padded_tokens,
    prompt_shapes,
)


@pytest.mark.parametrize("max_rows", [1, 2, 3, 7, 8, 64, 100, 300])
def test_every_batch_has_a_shape_that_is_at_most_twice_as_large(max_rows: int) -> None:
    shapes = decode_shapes(max_rows)

    sizes = [shape.num_rows for shape in shapes]
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == max_rows
    for rows in range(1, max_rows + 1):
        fitting = next(shape for shape in shapes if shape.holds(rows, rows))
        assert fitting.num_tokens == fitting.num_tiles <= max(2 * rows - 1, 1)


def test_a_decode_shape_holds_single_tokens_alone() -> None:
    (shape,) = decode_shapes(8)[-1:]

    assert shape.holds(4, 4)
    assert not shape.holds(2, 4)
    assert not shape.holds(9, 9)


def test_an_extension_shape_holds_one_row_of_up_to_its_tokens() -> None:
    shape = extension_shapes(64, 16)[1]

    assert shape.num_tokens == 32
    assert shape.holds(1, 32)
    assert shape.holds(1, 1)
    assert not shape.holds(1, 33)
    assert not shape.holds(2, 20)


def test_extensions_are_no_longer_than_the_model() -> None:
    assert [shape.num_tokens for shape in extension_shapes(40, 16)] == [16, 32]
    assert [shape.num_tokens for shape in extension_shapes(10**6, 16)] == list(EXTENSION_TOKENS)
    assert not extension_shapes(10, 16)


@pytest.mark.parametrize("tokens_per_tile", [1, 8, 16, 21, 64])
def test_a_row_and_the_padding_behind_it_always_have_tiles_enough(tokens_per_tile: int) -> None:
    for shape in extension_shapes(128, tokens_per_tile):
        for num_tokens in range(1, shape.num_tokens + 1):
            parts = (num_tokens, shape.num_tokens - num_tokens)
            assert sum(-(-part // tokens_per_tile) for part in parts) <= shape.num_tiles


def test_prompts_take_the_smallest_shape_that_wastes_little() -> None:
    shapes = prompt_shapes(256, 128)
    assert [shape.num_tokens for shape in shapes] == sorted({s.num_tokens for s in shapes})

    for total in range(33, 2177):
        shape = choose_prompt_shape(np.array([1] * 14 + [total - 14]), shapes)
        assert shape is not None
        assert total <= shape.num_tokens < max(1.5 * total, total + 64)
    assert choose_prompt_shape(np.array([2177]), shapes) is None


def test_a_shape_of_prompts_has_tiles_enough_for_its_rows() -> None:
    (shape,) = (each for each in prompt_shapes(40, 16) if each.num_tokens == 64)

    assert shape.num_prompt_tiles == 4 + 16
    assert shape.holds_prompts(np.array([2] * 17))
    assert not shape.holds_prompts(np.array([2] * 19)), "each is a tile, and so is the padding"
    assert shape.holds_prompts(np.array([1] * 40))
    assert not shape.holds_prompts(np.array([1] * 41)), "more rows than it has"
    assert not shape.holds_prompts(np.array([65]))


def test_prompts_beside_many_decodes_have_shapes_of_their_own() -> None:
    shapes = (*prompt_shapes(512, 128), *large_shapes(512, 128, 2048))

    for num_decodes in (130, 300, 511):
        for length in (2, 100, 1000, 2047, 4096 - num_decodes):
            shape = choose_prompt_shape(np.array([*[1] * num_decodes, length]), shapes)
            assert shape is not None
            assert 128 < shape.num_rows <= 512
            assert shape.num_tokens - num_decodes - length < max(256, length // 2)
    beside_few = choose_prompt_shape(np.array([1] * 127 + [1000]), shapes)
    assert beside_few is not None
    assert beside_few.num_rows == 128, "the rest would be padding in all that is sampled"
    assert choose_prompt_shape(np.array([1] * 512 + [2]), shapes) is None, "more rows than slots"


def test_a_few_rows_more_than_usual_are_padding_rather_than_shapes() -> None:
    assert not large_shapes(128, 16, 2048)
    assert not large_shapes(160, 16, 2048)
    assert {each.num_rows for each in prompt_shapes(160, 16)} == {160}
    assert {each.num_rows for each in prompt_shapes(161, 16)} == {128}
    assert {each.num_rows for each in large_shapes(161, 16, 2048)} == {161}
    assert min(each.num_rows for each in large_shapes(512, 16, 2048)) == 256, "a token each"


@pytest.mark.parametrize("max_rows", [8, 512])
def test_chunks_larger_than_usual_are_captured_with_little_padding(max_rows: int) -> None:
    shapes = (*prompt_shapes(max_rows, 128), *large_shapes(max_rows, 128, 8192))

    for length in (2177, 2900, 4097, 5000, 8192):
        for num_decodes in (0, 7, max_rows - 1):
            shape = choose_prompt_shape(np.array([*[1] * num_decodes, length]), shapes)
            assert shape is not None
            padding = shape.num_tokens - num_decodes - length
            assert padding < 0.2 * length
            assert padding == 0 or length < 8192 or num_decodes
    assert choose_prompt_shape(np.array([8192 + max_rows + 1]), shapes) is None
    assert not large_shapes(8, 128, 2048), "no step has so many tokens"
    assert max(each.num_tokens for each in large_shapes(8, 128, 3000)) == 3008
    assert max(each.num_tokens for each in large_shapes(8, 128, 32768)) == 8192


@pytest.mark.parametrize("max_rows", [8, 160, 161, 512])
@pytest.mark.parametrize("chunk", [2304, 2496, 2560, 4096, 8192])
def test_a_full_chunk_beside_any_decodes_has_a_shape(chunk: int, max_rows: int) -> None:
    shapes = (*prompt_shapes(max_rows, 128), *large_shapes(max_rows, 128, chunk))

    for num_decodes in {0, 1, max_rows // 2, max_rows - 1}:
        rows = np.array([*[1] * num_decodes, chunk])
        assert choose_prompt_shape(rows, shapes) is not None


@pytest.mark.parametrize(
    ("num_tokens", "padded"), [(1, 32), (32, 32), (33, 64), (2049, 2176), (2177, 2177)]
)
def test_what_a_step_has_with_its_padding(num_tokens: int, padded: int) -> None:
    assert padded_tokens(num_tokens) == padded
    assert num_tokens > 2176 or padded in {each.num_tokens for each in prompt_shapes(8, 16)}


def test_a_shape_that_keeps_states_holds_some_prompts_beside_any_single_tokens() -> None:
    shapes = [keeping_states(shape) for shape in prompt_shapes(128, 16)]
    (shape,) = (each for each in shapes if each.num_tokens == 128)

    assert shape.num_sequences == 16
    assert shape.holds_prompts(np.array([2] * 16 + [1] * 90))
    assert not shape.holds_prompts(np.array([2] * 17))
    assert next(keeping_states(each).num_sequences for each in prompt_shapes(3, 16)) == 3
    assert [keeping_states(each).num_sequences for each in extension_shapes(64, 16)] == [1] * 3
    assert [keeping_states(each) for each in decode_shapes(8)] == [*decode_shapes(8)]


def test_only_prompts_wait_by_layer() -> None:
    assert all(shape.waits_by_layer for shape in prompt_shapes(8, 16))
    assert not any(shape.waits_by_layer for shape in (*decode_shapes(8), *extension_shapes(64, 16)))


def test_a_shape_is_chosen_among_those_of_its_kind() -> None:
    """Single tokens of one lane must not take a decode shape that the others do not."""
    others = (*decode_shapes(8), *extension_shapes(64, 16))

    assert not any(shape.holds(8, 20) for shape in prompt_shapes(8, 16))
    assert choose_prompt_shape(np.array([1, 1]), others) is None
    assert choose_prompt_shape(np.array([16]), others) is None
