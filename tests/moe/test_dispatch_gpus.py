"""The suite of `dispatch_conformance` on GPUs, and what only graphs and processes can show."""

import itertools
import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.distributed import PrefixStore, Store

from raydix.kernels.ops import choose_ops
from raydix.moe.dispatch.nccl import NcclDispatcher
from raydix.moe.dispatch.packed import PackedDispatcher
from raydix.moe.dispatch.protocol import Dispatcher, DispatchForm, DispatchShape, DispatchSizes
from raydix.moe.dispatch.streamed import StreamedExchange
from raydix.moe.dispatch.transport import Transport
from tests.moe.dispatch_conformance import Setting, check_rounds
from tests.moe.gpu_ranks import NUM_RANKS, Body, run_on_gpus

Connect = Callable[[Store, int, DispatchShape, torch.device], Dispatcher]
SMALL = DispatchShape(
    num_ranks=NUM_RANKS,
    seats_per_rank=5,
    hidden_size=64,
    experts_per_token=3,
    max_tokens=150,
    max_low_latency_tokens=24,
    dtype=torch.float32,
)
WIDE = DispatchShape(
    num_ranks=NUM_RANKS,
    seats_per_rank=128,
    hidden_size=7168,
    experts_per_token=8,
    max_tokens=1000,
    max_low_latency_tokens=128,
    dtype=torch.bfloat16,
)
OTHERS = range(NUM_RANKS - 1)
_NUM_LAYERS = 3
"""Odd, so that steps begin with either set of buffers."""
_NUM_STEPS = 60


def conform(connect: Connect, store: Store, rank: int) -> None:
    device = torch.device("cuda", rank)
    for dtype, transport in itertools.product((torch.float32, torch.bfloat16), Transport):
        shape = replace(SMALL, dtype=dtype, transport=transport)
        setting = Setting(shape=shape, device=device)
        dispatcher = connect(PrefixStore(f"{dtype} {transport}", store), rank, shape, device)
        if transport is Transport.FP8:
            ops = choose_ops(device, dtype, head_counts={(1, 1)}, head_dims={64}, expert_sizes=())
            dispatcher = PackedDispatcher(dispatcher, ops, shape, device)
        for form in DispatchForm:
            check_rounds(dispatcher, rank, setting, form)
        dispatcher.close()


class Layers:
    """Some layers whose experts scale their tokens, one after the other."""

    def __init__(self, dispatcher: Dispatcher, rank: int, shape: DispatchShape) -> None:
        self._dispatcher = dispatcher
        self._rank = rank
        self._shape = shape

    def forward(
        self, x_TC: Tensor, weights_TK: Tensor, ids_TK: Tensor, sizes: DispatchSizes
    ) -> Tensor:
        for _ in range(_NUM_LAYERS):
            exchange = self._dispatcher.send(x_TC, weights_TK, ids_TK, sizes)
            received = exchange.receive()
            exchange.send_back(
                self._scaled(received.x_NC, received.weights_NK, received.local_ids_NK, self._rank)
            )
            x_TC = exchange.combine()
        return x_TC

    def in_turns(
        self, batches: "list[Batch]", sizes: list[DispatchSizes], stream: torch.cuda.Stream
    ) -> list[Tensor]:
        """Each batch computes while the others' rows travel. Nothing outlives its last use."""
        exchanges: list[StreamedExchange | None] = [None] * len(batches)
        for _ in range(_NUM_LAYERS):
            for index, batch in enumerate(batches):
                before = exchanges[index]
                exchanges[index] = StreamedExchange(
                    self._dispatcher,
                    stream,
                    x_TC=batch.x_TC if before is None else before.combine(),
                    weights_TK=batch.weights_TK,
                    physical_ids_TK=batch.ids_TK,
                    sizes=sizes[index],
                )
            for exchange in exchanges:
                assert exchange is not None
                received = exchange.receive()
                columns = received.x_NC, received.weights_NK, received.local_ids_NK
                exchange.send_back(self._scaled(*columns, self._rank))
        return [exchange.combine() for exchange in exchanges if exchange is not None]

    def expected(self, x_TC: Tensor, weights_TK: Tensor, ids_TK: Tensor) -> Tensor:
        """The same bits, without any other rank."""
        seats = self._shape.seats_per_rank
        for _ in range(_NUM_LAYERS):
            total_TC = torch.zeros_like(x_TC, dtype=torch.float32)
            for rank in range(self._shape.num_ranks):
                local_TK = ids_TK - rank * seats
                local_TK = local_TK.where((local_TK >= 0) & (local_TK < seats), -1)
                total_TC += self._scaled(x_TC, weights_TK, local_TK, rank)
            x_TC = total_TC.to(x_TC.dtype)
        return x_TC

    def _scaled(self, x_NC: Tensor, weights_NK: Tensor, ids_NK: Tensor, rank: int) -> Tensor:
        scales_NK = (ids_NK + rank * self._shape.seats_per_rank) / 256 + 0.5
        scale_N1 = (weights_NK * scales_NK).where(ids_NK >= 0, 0.0).sum(1, keepdim=True)
        return (x_NC.float() * scale_N1).where(scale_N1 > 0, 0.0).to(x_NC.dtype)


class Batch:
    """Inputs at fixed places."""

    def __init__(self, num_tokens: int, shape: DispatchShape, device: torch.device) -> None:
        self._shape = shape
        self.x_TC = torch.zeros(num_tokens, shape.hidden_size, dtype=shape.dtype, device=device)
        self.weights_TK = torch.zeros(num_tokens, shape.experts_per_token, device=device)
        self.ids_TK = torch.zeros(
            num_tokens, shape.experts_per_token, dtype=torch.int64, device=device
        )

    def draw(self) -> "Batch":
        """Other values, some tokens going nowhere."""
        num_experts = self._shape.num_ranks * self._shape.seats_per_rank
        num_tokens = len(self.x_TC)
        self.x_TC.normal_()
        self.weights_TK.uniform_(0.1, 0.3)
        scores_TE = torch.rand(num_tokens, num_experts, device=self.x_TC.device)
        self.ids_TK.copy_(scores_TE.topk(self._shape.experts_per_token, dim=1).indices)
        self.ids_TK[torch.rand(num_tokens, device=self.x_TC.device) < 0.2] = -1
        return self

    def columns(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.x_TC, self.weights_TK, self.ids_TK


def replay(
    connect: Connect,
    store: Store,
    rank: int,
    device: torch.device,
    is_right: Callable[[Tensor, Tensor], bool] = torch.equal,
) -> None:
    """Captured and eager steps in random order, with other values each time."""
    dispatcher = connect(store, rank, WIDE, device)
    layers = Layers(dispatcher, rank, WIDE)
    torch.manual_seed(rank)

    captured = []
    for num_tokens in (1, 40, 128):
        sizes = DispatchSizes((num_tokens,) * NUM_RANKS, DispatchForm.LOW_LATENCY)
        batch = Batch(num_tokens, WIDE, device)
        layers.forward(*batch.draw().columns(), sizes)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            out_TC = layers.forward(*batch.columns(), sizes)
        captured.append((graph, batch, out_TC))

    order = random.Random(0)
    for _ in range(_NUM_STEPS):
        choice = order.randrange(len(captured) + 1)
        tokens_R = tuple(order.randint(0, 1000) for _ in range(NUM_RANKS))
        if choice < len(captured):
            graph, batch, out_TC = captured[choice]
            batch.draw()
            graph.replay()
        else:
            batch = Batch(tokens_R[rank], WIDE, device).draw()
            out_TC = layers.forward(*batch.columns(), DispatchSizes(tokens_R))
        assert is_right(out_TC, layers.expected(*batch.columns()))
    # While the graphs live, as it is when a rank ends.
    dispatcher.close()


def take_turns(connect: Connect, store: Store, rank: int, device: torch.device) -> None:
    """Two batches whose rows travel on a stream of their own, in memory that others want, too."""
    dispatcher = connect(store, rank, WIDE, device)
    layers = Layers(dispatcher, rank, WIDE)
    stream = torch.cuda.Stream(priority=-1)
    torch.manual_seed(rank)

    order = random.Random(0)
    for _ in range(_NUM_STEPS):
        sizes = [
            DispatchSizes((*(order.randint(0, 1000) for _ in OTHERS), order.randint(1, 1000)))
            for _ in "AB"
        ]
        batches = [Batch(each.tokens_R[rank], WIDE, device).draw() for each in sizes]
        outputs = layers.in_turns(batches, sizes, stream)
        for batch, out_TC in zip(batches, outputs, strict=True):
            assert torch.equal(out_TC, layers.expected(*batch.columns()))
    dispatcher.close()


def symmetric(store: Store, rank: int, shape: DispatchShape, device: torch.device) -> Dispatcher:
    # Imported here: Triton is there on machines with a GPU alone.
    from raydix.moe.dispatch.symmetric import connect_symmetric

    return connect_symmetric(store, rank, shape, device)


def conform_symmetric(store: Store, rank: int, device: torch.device) -> None:
    conform(symmetric, store, rank)


def conform_nccl(store: Store, rank: int, device: torch.device) -> None:
    conform(NcclDispatcher, store, rank)


def replay_symmetric(store: Store, rank: int, device: torch.device) -> None:
    replay(symmetric, store, rank, device)


def replay_nccl(store: Store, rank: int, device: torch.device) -> None:
    replay(NcclDispatcher, store, rank, device)


def take_turns_symmetric(store: Store, rank: int, device: torch.device) -> None:
    take_turns(symmetric, store, rank, device)


def take_turns_nccl(store: Store, rank: int, device: torch.device) -> None:
    take_turns(NcclDispatcher, store, rank, device)


@pytest.mark.multi_gpu
@pytest.mark.parametrize("body", [conform_symmetric, conform_nccl])
def test_tokens_come_back_from_their_experts(body: Body, tmp_path: Path) -> None:
    run_on_gpus(tmp_path / "meeting", body)


@pytest.mark.multi_gpu
@pytest.mark.parametrize("body", [replay_symmetric, replay_nccl])
def test_graphs_replay_between_eager_steps(body: Body, tmp_path: Path) -> None:
    run_on_gpus(tmp_path / "meeting", body)


@pytest.mark.multi_gpu
@pytest.mark.parametrize("body", [take_turns_symmetric, take_turns_nccl])
def test_rows_travel_on_another_stream_while_others_are_computed(
    body: Body, tmp_path: Path
) -> None:
    run_on_gpus(tmp_path / "meeting", body)


def outlive(store: Store, rank: int, device: torch.device) -> float:
    """Rank 0 kills rank 1, and all write to its memory and wait for its answer until they close."""
    dispatcher = symmetric(store, rank, WIDE, device)
    batch = Batch(100, WIDE, device).draw()
    sizes = DispatchSizes((100,) * NUM_RANKS)
    Layers(dispatcher, rank, WIDE).forward(*batch.columns(), sizes)
    torch.cuda.synchronize()
    store.set(f"pid{rank}", str(os.getpid()))
    if rank == 1:
        time.sleep(3600)
    for peer in range(NUM_RANKS):
        store.get(f"pid{peer}")
    if rank == 0:
        os.kill(int(store.get("pid1")), signal.SIGKILL)
        store.set("killed", "")
    store.get("killed")

    exchange = dispatcher.send(*batch.columns(), sizes)
    exchange.send_back(exchange.receive().x_NC)
    exchange.combine()
    ended = torch.cuda.current_stream().record_event()
    time.sleep(0.5)
    assert not ended.query()
    closed_s = time.monotonic()
    dispatcher.close()
    ended.synchronize()
    with pytest.raises(RuntimeError, match="closed"):
        dispatcher.send(*batch.columns(), sizes)
    return time.monotonic() - closed_s


@pytest.mark.multi_gpu
def test_a_rank_that_is_closed_gives_up_on_a_dead_one(tmp_path: Path) -> None:
    waited_s = run_on_gpus(tmp_path / "meeting", outlive)

    assert waited_s.pop(1) is None, "it is dead"
    assert max(waited_s) < 1
