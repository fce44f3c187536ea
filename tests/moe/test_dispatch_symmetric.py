"""The suite of `dispatch_conformance` on `symmetric` without GPUs.

Ranks are processes that share their memory, and Triton's interpreter runs the kernels.
"""

import os
from dataclasses import replace

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from raydix.kernels.ops import ReferenceOps
from raydix.moe.dispatch.packed import PackedDispatcher
from raydix.moe.dispatch.protocol import (
    Dispatcher,
    DispatchForm,
    DispatchShape,
    DispatchSizes,
    Exchange,
)
from raydix.moe.dispatch.symmetric import SymmetricDispatcher, cut_sets
from raydix.moe.dispatch.symmetric_sizes import layout_of, memory_bytes
from raydix.moe.dispatch.transport import Transport
from tests.moe.dispatch_conformance import (
    CPU,
    SMALL,
    Choice,
    Setting,
    check_round,
    check_two_open,
    rounds,
)

SHAPE = replace(SMALL, num_ranks=3, max_tokens=20)
# Packed rows are wider than outputs here, and narrower in what follows.
SHAPES = (
    SHAPE,
    replace(SHAPE, transport=Transport.FP8),
    replace(SHAPE, hidden_size=200, dtype=torch.bfloat16, transport=Transport.FP8),
)
CHOICES = (Choice.SOME_NOWHERE, Choice.LAST_RANK)

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="needs Triton's interpreter"
)


def be_rank(rank: int, memories_R: list[Tensor], shape: DispatchShape) -> None:
    given_up_1 = torch.zeros(1, dtype=torch.int32)
    sets = cut_sets(memories_R, shape, rank, given_up_1)
    dispatcher: Dispatcher = SymmetricDispatcher(layout_of(rank, shape), sets, memories_R)
    if shape.transport is Transport.FP8:
        dispatcher = PackedDispatcher(dispatcher, ReferenceOps(), shape, CPU)
    setting = Setting(shape=shape)
    with torch.inference_mode():
        for form in DispatchForm:
            for each in rounds(shape, form):
                if each.choice in CHOICES:
                    check_round(dispatcher, rank, setting, each)
            check_two_open(dispatcher, rank, setting, each)


def test_an_exchange_takes_the_same_buffers_whatever_was_before() -> None:
    """The buffers of a graph must meet those of a rank that enqueues the same step."""
    shape = replace(SMALL, num_ranks=1)
    memories_R = [torch.zeros(memory_bytes(shape), dtype=torch.uint8)]
    sets = cut_sets(memories_R, shape, 0, torch.zeros(1, dtype=torch.int32))
    dispatcher = SymmetricDispatcher(layout_of(0, shape), sets, memories_R)

    def send() -> tuple[Exchange, int]:
        """An open exchange, and where its rows are."""
        x_TC, weights_TK = torch.zeros(2, shape.hidden_size), torch.zeros(2, 3)
        ids_TK = torch.zeros(2, 3, dtype=torch.int32)
        exchange = dispatcher.send(x_TC, weights_TK, ids_TK, DispatchSizes((2,)))
        received = exchange.receive()
        exchange.send_back(received.x_NC)
        return exchange, received.x_NC.data_ptr()

    alone, place = send()
    alone.combine()
    first, first_place = send()
    second, second_place = send()
    first.combine()
    second.combine()
    later, later_place = send()
    later.combine()

    assert place == first_place == later_place != second_place


def test_buffers_take_what_is_told_beforehand() -> None:
    shape = replace(SMALL, num_ranks=1)
    memories_R = [torch.zeros(memory_bytes(shape), dtype=torch.uint8)]
    sets = cut_sets(memories_R, shape, 0, torch.zeros(1, dtype=torch.int32))
    dispatcher = SymmetricDispatcher(layout_of(0, shape), sets, memories_R)

    # Each of two sets has seven tensors, which end at multiples of 256 bytes.
    assert memory_bytes(shape) - 2 * 7 * 256 < dispatcher.buffer_bytes <= memory_bytes(shape)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: f"{shape.transport}-{shape.dtype}")
def test_tokens_come_back_from_their_experts(shape: DispatchShape) -> None:
    memories_R = [
        torch.zeros(memory_bytes(shape), dtype=torch.uint8).share_memory_()
        for _ in range(shape.num_ranks)
    ]
    torch.multiprocessing.spawn(be_rank, args=(memories_R, shape), nprocs=shape.num_ranks)
