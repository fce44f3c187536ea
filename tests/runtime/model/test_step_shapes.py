import pytest

from raydix.runtime.model.step_shapes import EXTENSION_TOKENS, decode_shapes, extension_shapes


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
