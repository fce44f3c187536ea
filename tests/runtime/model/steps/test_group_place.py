"""What all ranks of a step group choose alike, from the sizes of all lanes."""

import pytest
import torch

from raydix.errors import AccountingError
from raydix.moe.dispatch.protocol import ALL_FORMS, DispatchForm, DispatchSizes
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.plan import StepPlan
from raydix.runtime.model.steps.group_place import (
    GroupPlace,
    LaneSizes,
    choose_shape,
    read_lane_sizes,
)
from raydix.runtime.model.steps.shape_choice import choose_common_shape
from raydix.runtime.model.steps.step_shapes import decode_shapes, extension_shapes, prompt_shapes

SHAPES = (*decode_shapes(4), *extension_shapes(64, 16))
PROMPTS = prompt_shapes(4, 16)[:2]
"""The shapes of 32 and 64 tokens."""


def group(
    rank: int, lanes: int = 2, tp: int = 2, forms: frozenset[DispatchForm] = ALL_FORMS
) -> GroupPlace:
    return GroupPlace(
        rank=rank, num_ranks=lanes * tp, ranks_per_lane=tp, max_tokens=32, captured_forms=forms
    )


def plan(
    own: tuple[int, ...], rows: tuple[int, ...] = (), tokens: tuple[int, ...] = ()
) -> StepPlan:
    """A plan with rows of so many tokens."""
    return StepPlan(
        step=3,
        row_slots=int32_array(range(len(own))),
        row_num_tokens=int32_array(own),
        group_rows=int32_array(rows),
        group_tokens=int32_array(tokens),
    )


@pytest.mark.parametrize("tokens", [(7, 4), (1, 0), (0, 3), (16, 1)])
@pytest.mark.parametrize("tp", [1, 2, 4])
def test_the_ranks_of_a_lane_send_each_of_its_rows_once(tokens: tuple[int, ...], tp: int) -> None:
    sent = [group(rank, 2, tp).exact(tokens) for rank in range(2 * tp)]

    assert all(each.sizes == sent[0].sizes for each in sent)
    assert [each.num_rows for each in sent] == list(sent[0].sizes.tokens_R)
    for lane in (0, 1):
        own = sent[lane * tp : (lane + 1) * tp]
        rows = [row for each in own for row in range(each.first, each.first + each.num_rows)]
        assert rows == list(range(tokens[lane]))


def test_every_rank_sends_as_many_rows_in_a_captured_step() -> None:
    is_padding = torch.tensor([False] * 4 + [True])
    (shape,) = decode_shapes(5)[-1:]
    sent = [group(rank).padded(shape, is_padding) for rank in range(4)]

    assert [(each.first, each.num_rows) for each in sent] == [(0, 3), (3, 3)] * 2
    assert sent[0].sizes.tokens_R == (3, 3, 3, 3)
    assert sent[0].sizes.form is DispatchForm.LOW_LATENCY


def test_prompts_travel_in_the_normal_form_and_what_a_lane_lacks_of_the_shape_is_padding() -> None:
    shape = PROMPTS[0]
    sent = group(1).padded(shape)

    assert (sent.first, sent.num_rows) == (16, 16)
    assert sent.sizes == DispatchSizes((16,) * 4, DispatchForm.NORMAL)
    ids_XK = sent.without_padding(torch.zeros(16, 2, dtype=torch.int32), 20)
    assert ids_XK[:, 0].tolist() == [0] * 4 + [-1] * 12


def test_all_lanes_take_the_shape_of_the_busiest() -> None:
    def chosen(*lanes: tuple[int, int], is_halved: bool = False) -> object:
        rows, tokens = zip(*lanes, strict=True)
        shapes = (*SHAPES, *PROMPTS)
        return choose_common_shape(shapes, LaneSizes(rows, tokens), lambda most: is_halved)

    assert chosen((1, 1), (3, 3)) == decode_shapes(4)[2]
    assert chosen((1, 1), (2, 18)) == PROMPTS[0]
    assert chosen((0, 0), (3, 33)) == PROMPTS[1]
    assert chosen((1, 40), (2, 64)) == PROMPTS[1]
    assert chosen((1, 40), (2, 65)) is None
    assert chosen((1, 1), (2, 18), is_halved=True) is None


def test_shapes_are_captured_that_buffers_hold_in_forms_that_may_be() -> None:
    shapes = prompt_shapes(4, 16)
    small = frozenset({DispatchForm.LOW_LATENCY})

    assert [each.num_tokens for each in shapes if group(3).captures(each)] == [32, 64]
    assert not any(group(3, forms=small).captures(each) for each in shapes)
    assert group(3, forms=small).captures(SHAPES[0])


def test_a_step_takes_the_first_shape_that_holds_the_rows_of_every_lane() -> None:
    def chosen(*lanes: tuple[int, int]) -> object:
        rows, tokens = zip(*lanes, strict=True)
        return choose_shape(LaneSizes(rows, tokens), SHAPES)

    assert chosen((1, 1)) == SHAPES[0]
    assert chosen((1, 1), (3, 3)) == decode_shapes(4)[2]
    assert chosen((0, 0), (1, 17)) == extension_shapes(64, 16)[1]
    assert chosen((1, 1), (1, 17)) == extension_shapes(64, 16)[1]
    assert chosen((2, 2), (1, 17)) is None
    assert chosen((1, 1), (2, 18)) is None
    assert chosen((1, 1), (5, 5)) is None


def test_a_lane_alone_reads_its_own_rows() -> None:
    assert read_lane_sizes(plan((3, 1)), None) == LaneSizes((2,), (4,))
    assert read_lane_sizes(plan((3, 1)), group(1, lanes=1)) == LaneSizes((2,), (4,))


def test_a_group_reads_the_rows_of_all_lanes() -> None:
    sizes = LaneSizes((2, 0), (4, 0))
    assert read_lane_sizes(plan((3, 1), (2, 0), (4, 0)), group(1)) == sizes
    assert read_lane_sizes(plan((), (2, 0), (4, 0)), group(2)) == sizes


def test_nobody_steps_where_a_plan_tells_of_no_rows() -> None:
    assert read_lane_sizes(plan(()), group(1)) == LaneSizes((0, 0), (0, 0))


@pytest.mark.parametrize(
    ("own", "rows", "tokens", "message"),
    [
        ((3, 1), (), (), "of 0 lanes"),
        ((3, 1), (2,), (4,), "of 1 lanes"),
        ((3, 1), (2, 1), (5, 1), "2 rows of 4 tokens"),
        ((), (1, 1), (1, 1), "0 rows of 0 tokens"),
    ],
)
def test_a_plan_that_contradicts_its_group_is_refused(
    own: tuple[int, ...], rows: tuple[int, ...], tokens: tuple[int, ...], message: str
) -> None:
    with pytest.raises(AccountingError, match=message):
        read_lane_sizes(plan(own, rows, tokens), group(1))
