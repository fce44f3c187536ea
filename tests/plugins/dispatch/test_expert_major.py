import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed import Store

from raydix.moe.dispatch.libraries import trial_obstacle
from raydix.moe.dispatch.protocol import Dispatcher, DispatchForm, DispatchShape
from raydix.plugins.dispatch.expert_major import (
    MAX_BUFFER_BYTES,
    BufferPerExchange,
    ExpertMajor,
    InParts,
    Landed,
    expert_major_obstacle,
    low_latency_tokens,
    part_tokens,
)
from raydix.plugins.dispatch.libraries import MOONCAKE_EP, NIXL_EP
from tests.moe.board import Board
from tests.moe.dispatch_conformance import (
    CPU,
    SMALL,
    Setting,
    check_rounds,
    draw,
    on_threads,
    rounds,
)
from tests.plugins.dispatch.fake_expert_major import FakeExpertMajorBuffer

SERVED = replace(
    SMALL,
    hidden_size=7168,
    seats_per_rank=128,
    experts_per_token=8,
    max_tokens=4096,
    max_low_latency_tokens=126,
    dtype=torch.bfloat16,
)


Connect = Callable[[Board, int, DispatchShape], ExpertMajor]


def connect(board: Board, rank: int, shape: DispatchShape) -> ExpertMajor:
    """Parts of 16 tokens in the normal form."""
    normal = FakeExpertMajorBuffer("normal", board, rank, shape, 16)
    low_latency = FakeExpertMajorBuffer("decode", board, rank, shape, low_latency_tokens(shape))
    return ExpertMajor(shape, InParts(shape, normal), low_latency, CPU, buffer_bytes=0)


class OneAtATime(FakeExpertMajorBuffer):
    """Mixes exchanges up, as a library may, unless each has ended before the next one begins."""

    ids_TK: Tensor

    def dispatch(self, x_TC: Tensor, ids_TK: Tensor) -> Landed:
        self.ids_TK = ids_TK
        return super().dispatch(x_TC, ids_TK)

    def combine(self, out_SPC: Tensor, ids_TK: Tensor, weights_TK: Tensor, handle: Any) -> Tensor:
        return super().combine(out_SPC, self.ids_TK, weights_TK, handle)


def connect_apart(board: Board, rank: int, shape: DispatchShape) -> ExpertMajor:
    """Exchanges that are open at once have buffers of their own; prompts go another way."""
    most = low_latency_tokens(shape)
    buffers = [OneAtATime(f"decode {each}", board, rank, shape, most) for each in range(2)]
    normal = InParts(shape, FakeExpertMajorBuffer("normal", board, rank, shape, 16))
    return ExpertMajor(shape, normal, BufferPerExchange(buffers), CPU, buffer_bytes=0)


@pytest.mark.parametrize("num_ranks", [2, 3])
@pytest.mark.parametrize("form", list(DispatchForm))
@pytest.mark.parametrize("connect", [connect, connect_apart])
def test_tokens_come_back_from_their_experts(
    connect: Connect, form: DispatchForm, num_ranks: int, tmp_path: Path
) -> None:
    shape = replace(SMALL, num_ranks=num_ranks)
    board = Board(num_ranks)

    def body(dispatcher: Dispatcher, rank: int) -> None:
        check_rounds(dispatcher, rank, Setting(shape=shape), form, seed=num_ranks)

    on_threads(tmp_path / "meeting", num_ranks, lambda _, rank: connect(board, rank, shape), body)


@pytest.mark.parametrize("form", list(DispatchForm))
def test_a_trial_finds_a_library_that_sums_wrongly(form: DispatchForm, tmp_path: Path) -> None:
    board = Board(2)

    class Wrong(FakeExpertMajorBuffer):
        def combine(self, *parts):  # type: ignore[no-untyped-def]
            return super().combine(*parts) * (1.1 if self._rank == 1 else 1.0)

    def wrong(_: Store, rank: int) -> ExpertMajor:
        buffers = (Wrong(name, board, rank, SMALL, 8) for name in ("normal", "decode"))
        return ExpertMajor(SMALL, InParts(SMALL, next(buffers)), next(buffers), CPU, buffer_bytes=0)

    def body(dispatcher: Dispatcher, rank: int) -> None:
        obstacle = trial_obstacle(dispatcher, SMALL, form, CPU)
        assert (obstacle is None) == (rank == 0)

    on_threads(tmp_path / "meeting", 2, wrong, body)


def test_a_closed_dispatcher_refuses_rows() -> None:
    dispatcher = connect(Board(2), 0, SMALL)
    dispatcher.close()

    each = rounds(SMALL, DispatchForm.NORMAL)[0]
    sent = draw(Setting(shape=SMALL), each, 0)
    with pytest.raises(RuntimeError, match="closed"):
        dispatcher.send(sent.x_TC, sent.weights_TK, sent.ids_TK, each.sizes)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"dtype": torch.float32}, "bfloat16 alone"),
        ({"hidden_size": 2880}, "hidden_size .*, here is 2880"),
        ({"experts_per_token": 12}, "11 experts, here 12"),
        ({"seats_per_rank": 1025}, "1024 experts, here are 1025"),
        ({"max_low_latency_tokens": 1028}, "1024 tokens at once"),
    ],
)
def test_shapes_that_kernels_lack_are_refused(change: dict[str, object], reason: str) -> None:
    assert expert_major_obstacle(SERVED) is None
    obstacle = expert_major_obstacle(replace(SERVED, **change))  # type: ignore[arg-type]
    assert obstacle is not None
    assert re.search(reason, obstacle)


def test_mooncake_ep_is_refused_what_its_kernels_cannot_do() -> None:
    odd = replace(SERVED, num_ranks=3, seats_per_rank=5)
    obstacle_of = MOONCAKE_EP.load_adapter().shape_obstacle

    assert obstacle_of(odd) == (
        "all ranks together must have an even number of experts, here are 15"
    )
    assert obstacle_of(replace(odd, num_ranks=2)) is None
    assert "low-latency form" in str(obstacle_of(replace(odd, max_low_latency_tokens=0)))
    assert "float32" in str(obstacle_of(replace(odd, num_ranks=2, dtype=torch.float32)))
    assert NIXL_EP.load_adapter().shape_obstacle(odd) is None


def test_a_part_is_as_large_as_memory_allows_and_no_larger_than_prompts_need() -> None:
    def bytes_of(max_tokens: int) -> int:
        return max_tokens * 2**24

    assert part_tokens(SERVED, bytes_of) * 2**24 == MAX_BUFFER_BYTES
    assert part_tokens(SERVED, lambda _: 0) == 1024
    assert part_tokens(replace(SERVED, max_tokens=100), lambda _: 0) == 128
    assert low_latency_tokens(SERVED) == 128
