"""Rows that travel as float8: what comes back is what experts say of rounded rows."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from raydix.kernels.fp8.form import scale_bytes
from raydix.kernels.ops import ReferenceOps
from raydix.kernels.reference.packed_rows import pack_rows, restore_rows
from raydix.moe.dispatch.gloo import GlooDispatcher
from raydix.moe.dispatch.packed import PackedDispatcher
from raydix.moe.dispatch.protocol import Dispatcher, DispatchForm
from raydix.moe.dispatch.transport import Transport
from tests.moe.dispatch_conformance import (
    CPU,
    SMALL,
    Round,
    Sent,
    Setting,
    compare,
    draw,
    on_threads,
    rounds,
    run_experts,
)

SHAPE = replace(SMALL, hidden_size=320, transport=Transport.FP8)
Check = Callable[[Dispatcher, int], None]


def run_ranks(file: Path, ops: ReferenceOps, check: Check) -> None:
    on_threads(
        file,
        SHAPE.num_ranks,
        lambda store, rank: PackedDispatcher(GlooDispatcher(store, rank, SHAPE), ops, SHAPE, CPU),
        check,
    )


def draw_whole(each: Round, rank: int) -> Sent:
    """What a rank sends: rows that rounding changes."""
    sent = draw(Setting(shape=SHAPE), each, rank)
    return replace(sent, x_TC=1.1 * sent.x_TC)


def rounded(sent: Sent) -> Sent:
    x_TC = restore_rows(pack_rows(sent.x_TC), SHAPE.hidden_size, SHAPE.dtype)
    return replace(sent, x_TC=x_TC)


def check_exchange(dispatcher: Dispatcher, rank: int, each: Round) -> None:
    """Compare with plain experts on the rows that a rank sends, as float8 rounds them."""
    setting = Setting(shape=SHAPE)
    sent = draw_whole(each, rank)
    exchange = dispatcher.send(sent.x_TC, sent.weights_TK, sent.ids_TK, each.sizes)
    run_experts(exchange, rank, setting)
    compare(exchange.combine(), rounded(sent), setting)


@pytest.mark.parametrize("form", list(DispatchForm))
def test_experts_get_rounded_rows_and_outputs_come_back_whole(
    form: DispatchForm, tmp_path: Path
) -> None:
    def check(dispatcher: Dispatcher, rank: int) -> None:
        for each in rounds(SHAPE, form):
            check_exchange(dispatcher, rank, each)

    run_ranks(tmp_path / "meeting", ReferenceOps(), check)


def test_rows_are_rounded_on_their_own_rank_too(tmp_path: Path) -> None:
    """What a token's experts say may not depend on where they are."""
    each = rounds(SHAPE, DispatchForm.NORMAL)[0]

    def check(dispatcher: Dispatcher, rank: int) -> None:
        sent = draw_whole(each, rank)
        exchange = dispatcher.send(sent.x_TC, sent.weights_TK, sent.ids_TK, each.sizes)
        first = sum(each.sizes.tokens_R[:rank])
        own_TC = exchange.receive().x_NC[first : first + len(sent.x_TC)]
        assert torch.equal(own_TC, rounded(sent).x_TC)
        assert not torch.equal(own_TC, sent.x_TC)
        exchange.send_back(torch.zeros(sum(each.sizes.tokens_R), SHAPE.hidden_size))
        exchange.combine()

    run_ranks(tmp_path / "meeting", ReferenceOps(), check)


class SwappedScales(ReferenceOps):
    """A mutant: the first two rows of a step have each other's scales."""

    @staticmethod
    def pack_rows(x_TC: Tensor) -> Tensor:
        """Pack rows, two of them wrongly."""
        packed_TB = pack_rows(x_TC)
        end = scale_bytes(x_TC.shape[1])
        packed_TB[:2, :end] = packed_TB[:2, :end].flip(0)
        return packed_TB


class ScalesOfOtherBlocks(ReferenceOps):
    """A mutant: the blocks of a row have each other's scales."""

    @staticmethod
    def restore_rows(packed_NB: Tensor, size: int, dtype: torch.dtype) -> Tensor:
        """Restore rows, their scales turned round."""
        scales_ND = packed_NB[:, : scale_bytes(size)].view(torch.float32).flip(1)
        turned_NB = packed_NB.clone()
        turned_NB[:, : scale_bytes(size)] = scales_ND.contiguous().view(torch.uint8)
        return restore_rows(turned_NB, size, dtype)


@pytest.mark.parametrize("mutant", [SwappedScales, ScalesOfOtherBlocks])
def test_comparison_fails_if_scales_are_in_wrong_places(
    mutant: type[ReferenceOps], tmp_path: Path
) -> None:
    """The control of the first test. Rows, and blocks of a row, differ in their magnitudes."""
    each = rounds(SHAPE, DispatchForm.NORMAL)[0]
    magnitudes_C = torch.cat([torch.full((128,), 1.0), torch.full((192,), 8.0)])

    def run(ops: ReferenceOps, name: str) -> None:
        def check(dispatcher: Dispatcher, rank: int) -> None:
            setting = Setting(shape=SHAPE)
            sent = draw_whole(each, rank)
            factors_T1 = 1.0 + 7.0 * (torch.arange(len(sent.x_TC)) % 2)[:, None]
            sent = replace(sent, x_TC=sent.x_TC * factors_T1 * magnitudes_C)
            exchange = dispatcher.send(sent.x_TC, sent.weights_TK, sent.ids_TK, each.sizes)
            run_experts(exchange, rank, setting)
            out_TC = exchange.combine()
            compare(out_TC, rounded(sent), setting)

        run_ranks(tmp_path / name, ops, check)

    run(ReferenceOps(), "right")
    with pytest.raises(AssertionError, match="not close"):
        run(mutant(), "wrong")
