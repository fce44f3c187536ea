"""The kernels as `SymmetricDispatcher` uses them, with all ranks in one process."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from raydix.moe.dispatch.protocol import DispatchForm, DispatchShape
from raydix.moe.dispatch.symmetric import SymmetricDispatcher, cut_sets
from raydix.moe.dispatch.symmetric_sizes import layout_of, memory_bytes
from tests.moe.dispatch_conformance import Round, Setting, compare, draw, rounds, run_experts

SHAPE = DispatchShape(
    num_ranks=2,
    seats_per_rank=4,
    hidden_size=16,
    experts_per_token=2,
    max_tokens=12,
    max_low_latency_tokens=6,
    dtype=torch.float32,
)
_NUM_OPEN = 2
_EVERY = 4
"""One in so many of the suite's rounds: the interpreter is slow, and other ranks take them all."""


def make_ranks(shape: DispatchShape, device: torch.device) -> list[SymmetricDispatcher]:
    num_bytes = memory_bytes(shape)
    memories = [
        torch.zeros(num_bytes, dtype=torch.uint8, device=device) for _ in range(shape.num_ranks)
    ]
    given_up = torch.zeros(1, dtype=torch.int32, pin_memory=device.type == "cuda")
    return [
        SymmetricDispatcher(
            layout_of(rank, shape), cut_sets(memories, shape, rank, given_up), memories
        )
        for rank in range(shape.num_ranks)
    ]


def exchange(
    ranks: Sequence[SymmetricDispatcher], setting: Setting, open_rounds: Sequence[Round]
) -> None:
    """Several at once; no rank waits, because all have sent before one of them receives."""
    sent = [[draw(setting, each, rank) for rank in range(len(ranks))] for each in open_rounds]
    exchanges = [
        [
            dispatcher.send(own.x_TC, own.weights_TK, own.ids_TK, each.sizes)
            for dispatcher, own in zip(ranks, by_rank, strict=True)
        ]
        for each, by_rank in zip(open_rounds, sent, strict=True)
    ]
    for by_rank in exchanges:
        for rank, own in enumerate(by_rank):
            run_experts(own, rank, setting)
    for by_rank, sent_by_rank in zip(exchanges, sent, strict=True):
        for own, sent_by_one in zip(by_rank, sent_by_rank, strict=True):
            compare(own.combine(), sent_by_one, setting)


@pytest.mark.parametrize("form", list(DispatchForm))
def test_tokens_come_back_whichever_buffers_have_their_turn(
    form: DispatchForm,
    device: torch.device,
) -> None:
    setting = Setting(shape=SHAPE, device=device)
    ranks = make_ranks(SHAPE, device)

    for number, each in enumerate(rounds(SHAPE, form)[::_EVERY]):
        at_once = 1 + number % _NUM_OPEN
        exchange(ranks, setting, [replace(each, seed=each.seed + i) for i in range(at_once)])


def test_a_closed_dispatcher_refuses_tokens(device: torch.device) -> None:
    ranks = make_ranks(SHAPE, device)
    each = rounds(SHAPE, DispatchForm.NORMAL)[0]
    own = draw(Setting(shape=SHAPE, device=device), each, 0)
    with pytest.raises(ValueError, match="tokens of rank 0; expected"):
        ranks[0].send(own.x_TC[1:], own.weights_TK[1:], own.ids_TK[1:], each.sizes)

    ranks[0].close()

    with pytest.raises(RuntimeError, match="closed"):
        ranks[0].send(own.x_TC, own.weights_TK, own.ids_TK, each.sizes)
