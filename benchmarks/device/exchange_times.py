"""Exchanges of tokens with other ranks, timed by events on this rank's device.

Shapes are DeepSeek-V3's. No experts run: what reaches a rank goes back.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from raydix.moe.dispatch.protocol import (
    Dispatcher,
    DispatchForm,
    DispatchSizes,
    Exchange,
    Received,
)

HIDDEN, EXPERTS, CHOICES = 7168, 256, 8
_GRAPH_CYCLES = 10
"""Dispatches and combines in a graph, whose time is divided by this."""
_SLEEP_CYCLES = 2_000_000
"""The device sleeps so many cycles, about 1 ms, while the host enqueues an exchange that is timed.
"""


@dataclass(frozen=True, kw_only=True, eq=False)
class Tokens:
    """What one rank sends."""

    x_TC: Tensor
    weights_TK: Tensor
    ids_TK: Tensor
    sizes: DispatchSizes

    def sent_bytes(self, rank: int) -> int:
        """The bytes of hidden states that a rank sends to other ranks."""
        num_ranks = len(self.sizes.tokens_R)
        owners_TK = self.ids_TK // (EXPERTS // num_ranks)
        pairs = sum(int((owners_TK == peer).any(1).sum()) for peer in range(num_ranks))
        pairs -= int((owners_TK == rank).any(1).sum())
        return pairs * HIDDEN * self.x_TC.itemsize


def draw(num_tokens: int, num_ranks: int, form: DispatchForm, device: torch.device) -> Tokens:
    """Random tokens and choices."""
    scores_TE = torch.rand(num_tokens, EXPERTS, device=device)
    return Tokens(
        x_TC=torch.randn(num_tokens, HIDDEN, dtype=torch.bfloat16, device=device),
        weights_TK=torch.rand(num_tokens, CHOICES, device=device),
        ids_TK=scores_TE.topk(CHOICES, dim=1).indices,
        sizes=DispatchSizes((num_tokens,) * num_ranks, form),
    )


def dispatch(dispatcher: Dispatcher, tokens: Tokens) -> tuple[Exchange, Received]:
    """Enqueue the first half of an exchange."""
    exchange = dispatcher.send(tokens.x_TC, tokens.weights_TK, tokens.ids_TK, tokens.sizes)
    return exchange, exchange.receive()


def combine(exchange: Exchange, received: Received) -> Tensor:
    """Enqueue the second half of an exchange."""
    exchange.send_back(received.x_NC)
    return exchange.combine()


def time_eager(dispatcher: Dispatcher, tokens: Tokens, repeats: int) -> list[tuple[float, float]]:
    """The times in us of each exchange: dispatch, combine."""
    times = []
    for _ in range(repeats):
        events = [torch.cuda.Event(enable_timing=True) for _ in range(3)]
        torch.cuda._sleep(_SLEEP_CYCLES)
        combine(*dispatch(dispatcher, tokens))
        events[0].record()
        under_way = dispatch(dispatcher, tokens)
        events[1].record()
        combine(*under_way)
        events[2].record()
        dispatch_us, combine_us = _elapsed_us(events)
        times.append((dispatch_us, combine_us))
    return times


def time_captured(
    dispatcher: Dispatcher, tokens: Tokens, repeats: int
) -> list[tuple[float, float, float]]:
    """The times in us of each exchange: dispatch, combine, both as one of many in a graph."""
    combine(*dispatch(dispatcher, tokens))
    torch.cuda.synchronize()
    one, other, many = (torch.cuda.CUDAGraph() for _ in range(3))
    with torch.cuda.graph(one, capture_error_mode="thread_local"):
        under_way = dispatch(dispatcher, tokens)
    with torch.cuda.graph(other, capture_error_mode="thread_local"):
        combine(*under_way)
    with torch.cuda.graph(many, capture_error_mode="thread_local"):
        for _ in range(_GRAPH_CYCLES):
            combine(*dispatch(dispatcher, tokens))

    times = []
    for _ in range(repeats):
        events = [torch.cuda.Event(enable_timing=True) for _ in range(4)]
        torch.cuda._sleep(_SLEEP_CYCLES)
        one.replay()
        other.replay()
        events[0].record()
        one.replay()
        events[1].record()
        other.replay()
        events[2].record()
        many.replay()
        events[3].record()
        dispatch_us, combine_us, many_us = _elapsed_us(events)
        times.append((dispatch_us, combine_us, many_us / _GRAPH_CYCLES))
    return times


def _elapsed_us(events: Sequence[torch.cuda.Event]) -> tuple[float, ...]:
    events[-1].synchronize()
    return tuple(1e3 * one.elapsed_time(other) for one, other in pairwise(events))
