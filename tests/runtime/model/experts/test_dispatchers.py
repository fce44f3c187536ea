from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.distributed import FileStore

from raydix.errors import ConfigError
from raydix.moe.dispatch.gloo import GlooDispatcher
from raydix.moe.dispatch.protocol import DispatchForm, DispatchShape
from raydix.runtime.config.policies import DispatchBackend
from raydix.runtime.model.experts.dispatchers import connect_dispatcher
from tests.moe.dispatch_conformance import Setting, check_round, rounds
from tests.moe.gpu_ranks import NUM_RANKS, run_on_gpus

SHAPE = DispatchShape(
    num_ranks=1,
    seats_per_rank=4,
    hidden_size=8,
    experts_per_token=2,
    max_tokens=4,
    max_low_latency_tokens=0,
    dtype=torch.float32,
)
CPU = torch.device("cpu")


def test_the_fastest_on_the_cpu_is_gloo(tmp_path: Path) -> None:
    dispatcher = connect_dispatcher(
        DispatchBackend.AUTO, tmp_path / "meeting", 0, SHAPE, device=CPU
    )

    assert isinstance(dispatcher, GlooDispatcher)
    dispatcher.close()


@pytest.mark.parametrize("backend", [DispatchBackend.NCCL, DispatchBackend.SYMMETRIC])
def test_what_needs_gpus_is_refused_on_the_cpu(backend: DispatchBackend, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"experts.dispatch is {backend}, but the model does not"):
        connect_dispatcher(backend, tmp_path / "meeting", 0, SHAPE, device=CPU)


def exchange_by_the_fastest(
    store: FileStore, rank: int, device: torch.device
) -> frozenset[DispatchForm]:
    shape = replace(SHAPE, num_ranks=NUM_RANKS, max_low_latency_tokens=2)
    dispatcher = connect_dispatcher(
        DispatchBackend.AUTO, Path(f"{store.path}-experts"), rank, shape, device=device
    )
    for form in DispatchForm:
        for each in rounds(shape, form):
            check_round(dispatcher, rank, Setting(shape=shape, device=device), each)
    dispatcher.close()
    return dispatcher.captured_forms


@pytest.mark.multi_gpu
def test_the_fastest_on_gpus_carries_tokens_and_may_be_captured(tmp_path: Path) -> None:
    assert all(run_on_gpus(tmp_path / "meeting", exchange_by_the_fastest))
