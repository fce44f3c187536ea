"""The suite of `dispatch_conformance` on a real library of others, where that is installed.

A library is named as entry points do it, `module:attribute`: each rank's process looks it up.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from pkgutil import resolve_name

import pytest
import torch
from torch import Tensor
from torch.distributed import Store

from raydix.errors import ConfigError
from raydix.moe.dispatch.libraries import connect_library
from raydix.moe.dispatch.machine import Machine
from raydix.moe.dispatch.probes import probe_library
from raydix.moe.dispatch.protocol import DispatchForm, DispatchShape
from tests.moe.dispatch_conformance import Setting, check_rounds
from tests.moe.gpu_ranks import NUM_RANKS, run_on_gpus
from tests.moe.test_dispatch_gpus import replay

SHAPE = DispatchShape(
    num_ranks=NUM_RANKS,
    seats_per_rank=5,
    hidden_size=2048,
    experts_per_token=3,
    max_tokens=150,
    max_low_latency_tokens=24,
    dtype=torch.bfloat16,
)
_TOLERANCE = 2e-2
"""The largest error after three layers, relative to the largest value: sums are in another order.
"""


def conform(name: str, store: Store, rank: int, device: torch.device) -> None:
    setting = Setting(shape=SHAPE, device=device)
    dispatcher = connect_library(resolve_name(name), store, rank, SHAPE, device)
    assert dispatcher.captured_forms == {DispatchForm.LOW_LATENCY}
    for form in DispatchForm:
        check_rounds(dispatcher, rank, setting, form)
    dispatcher.close()


def is_close(out_TC: Tensor, expected_TC: Tensor) -> bool:
    if not out_TC.numel():
        return out_TC.shape == expected_TC.shape
    difference = (out_TC.float() - expected_TC.float()).abs().max()
    return bool(difference <= _TOLERANCE * expected_TC.float().abs().max())


def replay_library(name: str, store: Store, rank: int, device: torch.device) -> None:
    """Eager steps have more tokens than the kernels of some take at once."""
    replay(partial(connect_library, resolve_name(name)), store, rank, device, is_right=is_close)


def refuse(name: str, store: Store, rank: int, device: torch.device) -> None:
    """Only rank 1 asks for what no kernel is there for."""
    shape = replace(SHAPE, dtype=torch.float16) if rank == 1 else SHAPE
    with pytest.raises(
        ConfigError, match=f"{resolve_name(name).backend} is unavailable: .*float16 .rank 1."
    ):
        connect_library(resolve_name(name), store, rank, shape, device)


Claim = Callable[[str, Store, int, torch.device], None]
CLAIMS: tuple[Claim, ...] = (conform, replay_library, refuse)
"""What each rank does. Tokens come back, graphs replay, and what one rank lacks all refuse."""


def check_claim(claim: Claim, name: str, folder: Path) -> None:
    """Let the ranks of this machine do it, or skip if it has not what the library needs."""
    verdict = probe_library(resolve_name(name), Machine())
    if verdict.obstacle is not None:
        pytest.skip(f"{verdict.backend}: {verdict}")
    run_on_gpus(folder / "meeting", partial(claim, name))
