"""The suite of `dispatch_conformance` on `symmetric` without GPUs.

Ranks are processes that share their memory, and Triton's interpreter runs the kernels.
"""

import os
from dataclasses import replace

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from raydix.moe.dispatch.protocol import DispatchForm, DispatchSizes, Exchange
from raydix.moe.dispatch.symmetric import (
    SymmetricDispatcher,
    cut_sets,
    layout_of,
    memory_bytes,
)
from tests.moe.dispatch_conformance import (
    SMALL,
    Choice,
    Setting,
    check_round,
    check_two_open,
    rounds,
)

SHAPE = replace(SMALL, num_ranks=3, max_tokens=20)
CHOICES = (Choice.SOME_NOWHERE, Choice.LAST_RANK)

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="needs Triton's interpreter"
)


def be_rank(rank: int, memories_R: list[Tensor]) -> None:
    given_up_1 = torch.zeros(1, dtype=torch.int32)
    sets = cut_sets(memories_R, SHAPE, rank, given_up_1)
    dispatcher = SymmetricDispatcher(layout_of(rank, SHAPE), sets, memories_R)
    setting = Setting(shape=SHAPE)
    with torch.inference_mode():
        for form in DispatchForm:
            for each in rounds(SHAPE, form):
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


def test_tokens_come_back_from_their_experts() -> None:
    memories_R = [
        torch.zeros(memory_bytes(SHAPE), dtype=torch.uint8).share_memory_()
        for _ in range(SHAPE.num_ranks)
    ]
    torch.multiprocessing.spawn(be_rank, args=(memories_R,), nprocs=SHAPE.num_ranks)
