from pathlib import Path

import pytest
import torch

from raydix.errors import ConfigError
from raydix.moe.dispatch.gloo import GlooDispatcher
from raydix.moe.dispatch.protocol import DispatchShape
from raydix.runtime.config.policies import DispatchBackend
from raydix.runtime.model.dispatchers import connect_dispatcher

SHAPE = DispatchShape(
    num_ranks=1,
    slots_per_rank=4,
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
