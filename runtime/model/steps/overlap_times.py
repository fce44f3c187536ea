"""How long steps take whole, in halves, and with nothing but their exchanges: for the gate.

Legend: X rows that this rank sends, K experts per token, P seats with experts, of all ranks.
"""

import logging
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.distributed import FileStore

from raydix.moe.dispatch.store_group import StoreGroup
from raydix.moe.overlap_gate import StepTimes, slowest
from raydix.moe.placement import EMPTY
from raydix.moe.sent_rows import SentRows
from raydix.runtime.model.collectives.meeting import MEETING_TIMEOUT
from raydix.runtime.model.decoder.decoder import Decoder
from raydix.runtime.model.decoder.expert_ranks import ModelExperts
from raydix.runtime.model.steps.halving import figures
from raydix.runtime.model.steps.runner import ModelRunner

logger = logging.getLogger(__name__)
_SMALLEST_TOKENS = 4096
"""Smaller steps are captured, up to 2176 tokens, or mostly launches, of which halves have more."""
_REPEATS = 3


def step_times(runner: ModelRunner, decoder: Decoder, file: Path) -> tuple[StepTimes, ...]:
    """What halves gain on this machine; the same on all ranks that share experts. cuda only.

    Waits for those ranks. For `file` see `meet`.
    """
    experts = decoder.experts
    assert experts is not None, "others share the experts"
    runner.slots.vary_padding(decoder.spec.vocab_size)
    exchange = BareExchange(experts, decoder.spec.hidden_size, decoder.dtype)
    own = measure(measured_sizes(runner.max_prefill_tokens), runner, exchange, cuda_elapsed_s)
    times = agree(file, experts.ranks.rank, experts.ranks.size, own)
    # What padding asked for does not count.
    experts.routes.take_demand()

    if experts.ranks.rank == 0:
        for each in times:
            logger.info("a step in two halves: %s", figures(each))
    return times


def measured_sizes(max_tokens: int) -> list[int]:
    """Numbers of tokens to measure: rising, each of them the double of the one before, but for the
    last."""
    if max_tokens < _SMALLEST_TOKENS:
        return []
    num_doublings = (max_tokens // _SMALLEST_TOKENS).bit_length()
    return sorted({*(_SMALLEST_TOKENS << bit for bit in range(num_doublings)), max_tokens})


def measure(
    sizes: Sequence[int],
    runner: ModelRunner,
    exchange: Callable[[SentRows], None],
    elapsed_s: Callable[[Callable[[], None]], float],
) -> list[StepTimes]:
    """Time steps of these numbers of tokens, on every rank of the step group alike.

    `exchange`: that of all layers.
    """
    return [
        StepTimes(
            num_tokens=num_tokens,
            whole_s=elapsed_s(partial(runner.run_whole, num_tokens)),
            communication_s=elapsed_s(partial(exchange, runner.sent_rows(num_tokens))),
            halved_s=elapsed_s(partial(runner.run_halved, num_tokens)),
        )
        for num_tokens in sizes
    ]


def cuda_elapsed_s(run: Callable[[], None]) -> float:
    """The median time of what is enqueued on the current stream, after a first run."""
    run()
    rounds_s = []
    for _ in range(_REPEATS):
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        began.record()
        run()
        ended.record()
        ended.synchronize()
        rounds_s.append(began.elapsed_time(ended) / 1e3)
    return statistics.median(rounds_s)


class BareExchange:
    """The exchanges of all layers, of tokens whose experts are drawn evenly."""

    def __init__(self, experts: ModelExperts, hidden_size: int, dtype: torch.dtype) -> None:
        self._dispatcher = experts.dispatcher
        self._num_layers = len(experts.by_layer)
        self._hidden_size = hidden_size
        self._dtype = dtype
        self._num_chosen = experts.experts_per_token
        held_P = np.flatnonzero(experts.placement.experts_LP[0] != EMPTY)
        self._held_P = torch.from_numpy(held_P).to(experts.routes.table_LER.device)

    def __call__(self, sent: SentRows) -> None:
        """Once through all layers, for these rows."""
        device, num_rows = self._held_P.device, sent.num_rows
        x_XC = torch.zeros(num_rows, self._hidden_size, dtype=self._dtype, device=device)
        weights_XK = torch.ones(num_rows, self._num_chosen, device=device)
        ids_XK = self._drawn(num_rows)
        for _ in range(self._num_layers):
            exchange = self._dispatcher.send(x_XC, weights_XK, ids_XK, sent.sizes)
            received = exchange.receive()
            exchange.send_back(torch.empty_like(received.x_NC))
            exchange.combine()

    def _drawn(self, num_rows: int) -> Tensor:
        """Distinct experts of each row."""
        draws_XP = torch.rand(num_rows, len(self._held_P), device=self._held_P.device)
        return self._held_P[draws_XP.topk(self._num_chosen, sorted=False).indices].int()


def agree(file: Path, rank: int, size: int, times: Sequence[StepTimes]) -> tuple[StepTimes, ...]:
    """What all ranks of a step group go by; waits for them. For `file` see `meet`."""
    store = FileStore(str(file), size)
    store.set_timeout(MEETING_TIMEOUT)
    return slowest(StoreGroup("overlap", store, rank, size).swap(tuple(times)))
