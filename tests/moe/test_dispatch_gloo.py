from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.distributed import FileStore

from raydix.moe.dispatch.gloo import GlooDispatcher
from raydix.moe.dispatch.protocol import Dispatcher, DispatchForm, DispatchSizes
from tests.moe.dispatch_conformance import (
    SMALL,
    Choice,
    Round,
    Setting,
    check_round,
    check_rounds,
    compare,
    draw,
    on_threads,
    rounds,
    run_experts,
)

SHAPE = replace(SMALL, max_tokens=100)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("num_ranks", [1, 2, 3])
@pytest.mark.parametrize("form", list(DispatchForm))
def test_tokens_come_back_from_their_experts(
    form: DispatchForm, num_ranks: int, dtype: torch.dtype, tmp_path: Path
) -> None:
    shape = replace(SHAPE, num_ranks=num_ranks, dtype=dtype)

    def body(dispatcher: Dispatcher, rank: int) -> None:
        check_rounds(dispatcher, rank, Setting(shape=shape), form, seed=num_ranks)

    on_threads(
        tmp_path / "meeting",
        num_ranks,
        lambda store, rank: GlooDispatcher(store, rank, shape),
        body,
    )


def test_a_token_may_have_one_expert(tmp_path: Path) -> None:
    shape = replace(SHAPE, experts_per_token=1)

    def body(dispatcher: Dispatcher, rank: int) -> None:
        for each in rounds(shape, DispatchForm.NORMAL):
            sent = draw(Setting(shape=shape), each, rank)
            # A single column may have any stride.
            weights = sent.weights_TK.flatten().as_strided(sent.weights_TK.shape, (1, 0))
            exchange = dispatcher.send(sent.x_TC, weights, sent.ids_TK, each.sizes)
            run_experts(exchange, rank, Setting(shape=shape))
            compare(exchange.combine(), sent, Setting(shape=shape))

    on_threads(
        tmp_path / "meeting", 2, lambda store, rank: GlooDispatcher(store, rank, shape), body
    )


def test_conformance_fails_on_an_expert_of_another_rank(tmp_path: Path) -> None:
    """The control of the suite: rank 1 computes with the experts of rank 0."""
    each = Round(name="", sizes=DispatchSizes((4, 4)), choice=Choice.LAST_RANK)

    def body(dispatcher: Dispatcher, rank: int) -> None:
        with pytest.raises(AssertionError, match="Tensor-likes are not close"):
            check_round(_Misplaced(dispatcher), rank, Setting(shape=SHAPE), each)

    on_threads(
        tmp_path / "meeting", 2, lambda store, rank: GlooDispatcher(store, rank, SHAPE), body
    )


class _Misplaced:
    """Sends every token to the same seat of the next rank."""

    captured_forms: frozenset[DispatchForm] = frozenset()
    buffer_bytes = 0

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self.close = dispatcher.close

    def send(self, x, weights, ids, sizes):  # type: ignore[no-untyped-def]
        ids = (ids + SHAPE.seats_per_rank) % (2 * SHAPE.seats_per_rank)
        return self._dispatcher.send(x, weights, ids, sizes)


def test_a_rank_that_ends_does_not_keep_the_others_waiting(tmp_path: Path) -> None:
    sizes, setting = DispatchSizes((2, 2)), Setting(shape=SHAPE)
    each = Round(name="", sizes=sizes)

    def be_rank(rank: int) -> None:
        dispatcher = GlooDispatcher(FileStore(str(tmp_path / "meeting"), 2), rank, SHAPE)
        check_round(dispatcher, rank, setting, each)
        if rank == 0:
            dispatcher.close()
            return
        sent = draw(setting, each, rank)
        with pytest.raises(RuntimeError):
            run_experts(
                dispatcher.send(sent.x_TC, sent.weights_TK, sent.ids_TK, sizes), rank, setting
            )

    with ThreadPoolExecutor(2) as pool:
        for future in [pool.submit(be_rank, rank) for rank in range(2)]:
            future.result(60)


def test_a_closed_dispatcher_refuses_rows(tmp_path: Path) -> None:
    shape = replace(SHAPE, num_ranks=1)
    dispatcher = GlooDispatcher(FileStore(str(tmp_path / "meeting"), 1), 0, shape)
    dispatcher.close()

    with pytest.raises(RuntimeError, match="closed"):
        check_round(dispatcher, 0, Setting(shape=shape), Round(name="", sizes=DispatchSizes((2,))))
