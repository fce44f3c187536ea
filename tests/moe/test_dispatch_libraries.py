"""The suite of `dispatch_conformance` on the real libraries of others, where they are installed."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.distributed import Store

from raydix.errors import ConfigError
from raydix.moe.dispatch.libraries import connect_library
from raydix.moe.dispatch.machine import Machine
from raydix.moe.dispatch.probes import probe
from raydix.moe.dispatch.protocol import DispatchForm, DispatchShape
from tests.moe.dispatch_conformance import Setting, check_rounds
from tests.moe.gpu_ranks import NUM_RANKS, run_on_gpus
from tests.moe.test_dispatch_gpus import replay

BACKENDS = ("deepep", "nixl_ep", "mooncake_ep")
SHAPE = DispatchShape(
    num_ranks=NUM_RANKS,
    slots_per_rank=5,
    hidden_size=2048,
    experts_per_token=3,
    max_tokens=150,
    max_low_latency_tokens=24,
    dtype=torch.bfloat16,
)
_TOLERANCE = 2e-2
"""After three layers, relative to the largest value: sums are in another order."""


def conform(backend: str, store: Store, rank: int, device: torch.device) -> None:
    setting = Setting(shape=SHAPE, device=device)
    dispatcher = connect_library(backend, store, rank, SHAPE, device)
    assert dispatcher.captured_forms == {DispatchForm.LOW_LATENCY}
    for form in DispatchForm:
        check_rounds(dispatcher, rank, setting, form)
    dispatcher.close()


def is_close(out_TC: Tensor, expected_TC: Tensor) -> bool:
    if not out_TC.numel():
        return out_TC.shape == expected_TC.shape
    difference = (out_TC.float() - expected_TC.float()).abs().max()
    return bool(difference <= _TOLERANCE * expected_TC.float().abs().max())


def replay_library(backend: str, store: Store, rank: int, device: torch.device) -> None:
    """Eager steps have more tokens than the kernels of some take at once."""
    replay(partial(connect_library, backend), store, rank, device, is_right=is_close)


def refuse(backend: str, store: Store, rank: int, device: torch.device) -> None:
    """Only rank 1 asks for what no kernel is there for."""
    shape = replace(SHAPE, dtype=torch.float16) if rank == 1 else SHAPE
    with pytest.raises(ConfigError, match=f"{backend} is unavailable: .*float16 .rank 1."):
        connect_library(backend, store, rank, shape, device)


def need(backend: str) -> None:
    verdict = probe(backend, Machine())
    if verdict.obstacle is not None:
        pytest.skip(f"{backend}: {verdict}")


@pytest.mark.multi_gpu
@pytest.mark.parametrize("backend", BACKENDS)
def test_tokens_come_back_from_their_experts(backend: str, tmp_path: Path) -> None:
    need(backend)
    run_on_gpus(tmp_path / "meeting", partial(conform, backend))


@pytest.mark.multi_gpu
@pytest.mark.parametrize("backend", BACKENDS)
def test_graphs_replay_between_eager_steps(backend: str, tmp_path: Path) -> None:
    need(backend)
    run_on_gpus(tmp_path / "meeting", partial(replay_library, backend))


@pytest.mark.multi_gpu
@pytest.mark.parametrize("backend", BACKENDS)
def test_what_one_rank_cannot_do_is_refused_by_all(backend: str, tmp_path: Path) -> None:
    need(backend)
    run_on_gpus(tmp_path / "meeting", partial(refuse, backend))
