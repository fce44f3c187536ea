"""What every dispatcher must do, on any device, be its ranks threads or processes.

Each rank calls `check_rounds`, or one of its parts, with the same arguments but its dispatcher and
its number; it draws what every rank sends from the seed, and compares what comes back with one
plain pass over all experts.
"""

import random
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed import FileStore, Store

from raydix.kernels.dense.glu_form import SiluGlu
from raydix.kernels.reference.experts import fused_experts
from raydix.kernels.reference.packed_rows import pack_rows, restore_rows
from raydix.moe.dispatch.protocol import (
    Dispatcher,
    DispatchForm,
    DispatchShape,
    DispatchSizes,
    Exchange,
)
from raydix.moe.dispatch.transport import Transport

WAIT_S = 60
SMALL = DispatchShape(
    num_ranks=2,
    seats_per_rank=5,
    hidden_size=32,
    experts_per_token=3,
    max_tokens=40,
    max_low_latency_tokens=8,
    dtype=torch.float32,
)
CPU = torch.device("cpu")
_INTERMEDIATE_SIZE = 16
TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 1.5e-2}
"""The largest error, as a part of the largest output."""


class Choice(Enum):
    """Which experts tokens go to."""

    RANDOM = auto()
    SOME_NOWHERE = auto()
    """A third of the ids are -1, and so are all of some tokens."""
    NOWHERE = auto()
    ONE_EXPERT = auto()
    """All tokens' first choice; their others go nowhere."""
    FIRST_RANK = auto()
    """The other ranks get nothing."""
    LAST_RANK = auto()


@dataclass(frozen=True, kw_only=True)
class Round:
    """One exchange of every rank. `seed` decides what is sent."""

    name: str
    sizes: DispatchSizes
    choice: Choice = Choice.RANDOM
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A group of ranks. `tolerance`: of outputs, relative to the largest; None: by dtype."""

    shape: DispatchShape
    device: torch.device = CPU
    tolerance: float | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Sent:
    """What one rank sends."""

    x_TC: Tensor
    weights_TK: Tensor
    ids_TK: Tensor


def rounds(shape: DispatchShape, form: DispatchForm, seed: int = 0) -> list[Round]:
    """All that may happen in one exchange, with sizes drawn from the seed."""
    if form is DispatchForm.LOW_LATENCY:
        most = shape.max_low_latency_tokens
        sizes = {f"{size} each": (size,) * shape.num_ranks for size in sorted({1, most // 2, most})}
    else:
        rng, most, others = random.Random(seed), shape.max_tokens, shape.num_ranks - 1
        sizes = {
            "random sizes": tuple(rng.randint(1, most) for _ in range(shape.num_ranks)),
            "the most": (most,) * shape.num_ranks,
            "one token in all": (1, *(0,) * others),
            "the first idle": (0, *(rng.randint(1, most) for _ in range(others))),
            "the last idle": (*(rng.randint(1, most) for _ in range(others)), 0),
        }
    return [
        Round(
            name=f"{name}, {choice.name.lower()}",
            sizes=DispatchSizes(tokens_R, form),
            choice=choice,
            seed=seed + 97 * number,
        )
        for number, (name, tokens_R) in enumerate(sizes.items())
        if sum(tokens_R)
        for choice in Choice
    ]


def check_round(dispatcher: Dispatcher, rank: int, setting: Setting, each: Round) -> None:
    """Every own token gets the weighted sum of its experts' outputs."""
    sent = draw(setting, each, rank)
    exchange = dispatcher.send(sent.x_TC, sent.weights_TK, sent.ids_TK, each.sizes)
    run_experts(exchange, rank, setting)
    compare(exchange.combine(), sent, setting)


def check_rounds(
    dispatcher: Dispatcher, rank: int, setting: Setting, form: DispatchForm, seed: int = 0
) -> None:
    """All rounds of a form, alone and beside another exchange."""
    for each in rounds(setting.shape, form, seed=seed):
        check_round(dispatcher, rank, setting, each)
        check_two_open(dispatcher, rank, setting, each)


def check_two_open(dispatcher: Dispatcher, rank: int, setting: Setting, each: Round) -> None:
    """Neither of two exchanges that are open at once disturbs the other, time after time."""
    for time in range(3):
        both = [draw(setting, replace(each, seed=each.seed + 2 * time + i), rank) for i in (0, 1)]
        first, second = (
            dispatcher.send(sent.x_TC, sent.weights_TK, sent.ids_TK, each.sizes) for sent in both
        )
        run_experts(first, rank, setting)
        run_experts(second, rank, setting)
        compare(first.combine(), both[0], setting)
        compare(second.combine(), both[1], setting)


def draw(setting: Setting, each: Round, rank: int) -> Sent:
    """What a rank sends, in this round."""
    shape, num_tokens = setting.shape, each.sizes.tokens_R[rank]
    generator = torch.Generator().manual_seed(1000 * each.seed + rank)
    x_TC = torch.randn(num_tokens, shape.hidden_size, generator=generator).to(shape.dtype)
    if shape.transport is Transport.FP8:
        # Rounded beforehand, and so not on the way.
        x_TC = restore_rows(pack_rows(x_TC), shape.hidden_size, shape.dtype)
    weights_TK = torch.rand(num_tokens, shape.experts_per_token, generator=generator)
    ids_TK = _choose(shape, each.choice, num_tokens, generator)
    return Sent(
        x_TC=x_TC.to(setting.device),
        weights_TK=weights_TK.to(setting.device),
        ids_TK=ids_TK.to(setting.device),
    )


def _choose(
    shape: DispatchShape, choice: Choice, num_tokens: int, generator: torch.Generator
) -> Tensor:
    num_experts = shape.num_ranks * shape.seats_per_rank
    scores_TE = torch.rand(num_tokens, num_experts, generator=generator)
    # A token's experts are different ones.
    if choice is Choice.FIRST_RANK and shape.seats_per_rank >= shape.experts_per_token:
        scores_TE[:, : shape.seats_per_rank] += 1
    if choice is Choice.LAST_RANK and shape.seats_per_rank >= shape.experts_per_token:
        scores_TE[:, -shape.seats_per_rank :] += 1
    ids_TK = scores_TE.topk(shape.experts_per_token, dim=1).indices

    if choice is Choice.SOME_NOWHERE:
        is_nowhere_TK = torch.rand(ids_TK.shape, generator=generator) < 1 / 3
        is_nowhere_TK |= torch.rand(num_tokens, 1, generator=generator) < 1 / 4
        ids_TK = ids_TK.masked_fill(is_nowhere_TK, -1)
    elif choice is Choice.NOWHERE:
        ids_TK = torch.full_like(ids_TK, -1)
    elif choice is Choice.ONE_EXPERT:
        ids_TK = torch.full_like(ids_TK, -1)
        ids_TK[:, 0] = num_experts - 1
    return ids_TK


def run_experts(exchange: Exchange, rank: int, setting: Setting) -> None:
    """What the layer does between dispatch and combine."""
    received = exchange.receive()
    seats = setting.shape.seats_per_rank
    gate_up_EIC, down_ECI = _experts(setting, setting.shape.dtype)
    own = slice(rank * seats, (rank + 1) * seats)
    out_NC = fused_experts(
        received.x_NC,
        gate_up_EIC[own],
        down_ECI[own],
        received.weights_NK,
        received.local_ids_NK,
        form=SiluGlu(),
        biases=None,
    )
    exchange.send_back(out_NC)


def compare(out_TC: Tensor, sent: Sent, setting: Setting) -> None:
    """Raise AssertionError if this is not what all experts together make of what was sent."""
    gate_up_EIC, down_ECI = _experts(setting, torch.float32)
    expected_TC = fused_experts(
        sent.x_TC.float(),
        gate_up_EIC,
        down_ECI,
        sent.weights_TK,
        sent.ids_TK,
        form=SiluGlu(),
        biases=None,
    )

    assert out_TC.dtype == setting.shape.dtype
    assert out_TC.shape == expected_TC.shape
    # What each rank makes of a token is rounded, and then added up.
    num_terms = min(setting.shape.num_ranks, setting.shape.experts_per_token)
    tolerance = setting.tolerance or TOLERANCES[setting.shape.dtype] * max(1, num_terms / 2)
    largest = float(expected_TC.abs().max()) if expected_TC.numel() else 0.0
    torch.testing.assert_close(out_TC.float(), expected_TC, rtol=0.0, atol=tolerance * largest)


@lru_cache(maxsize=4)
def _experts(setting: Setting, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Weights of all physical experts, as the model's dtype rounds them."""
    shape = setting.shape
    num_experts, hidden, size = (
        shape.num_ranks * shape.seats_per_rank,
        shape.hidden_size,
        _INTERMEDIATE_SIZE,
    )
    generator = torch.Generator().manual_seed(1)
    gate_up_EIC = torch.randn(num_experts, 2 * size, hidden, generator=generator) * hidden**-0.5
    down_ECI = torch.randn(num_experts, hidden, size, generator=generator) * size**-0.5
    return (
        gate_up_EIC.to(shape.dtype).to(setting.device, dtype),
        down_ECI.to(shape.dtype).to(setting.device, dtype),
    )


def on_threads(
    file: Path,
    num_ranks: int,
    connect: Callable[[Store, int], Dispatcher],
    body: Callable[[Dispatcher, int], None],
) -> None:
    """Let the ranks of a group meet by `file`, each in a thread, and do `body`."""

    def be_rank(rank: int) -> None:
        dispatcher = connect(FileStore(str(file), num_ranks), rank)
        try:
            with torch.inference_mode():
                body(dispatcher, rank)
        except BaseException as error:
            # The frames of a failure keep its exchange, and what the other ranks wait for, alive.
            traceback.clear_frames(error.__traceback__)
            raise
        finally:
            dispatcher.close()

    with ThreadPoolExecutor(num_ranks) as pool:
        for future in [pool.submit(be_rank, rank) for rank in range(num_ranks)]:
            future.result(WAIT_S)
