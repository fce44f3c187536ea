"""What the real model refuses, and how large L1 gets where it may take a fraction of a device."""

import json
from pathlib import Path

import pytest
import torch

from benchmarks.model.model_shapes import SHAPES
from raydix.errors import ConfigError
from raydix.runtime.actors.gpu_model import RankPlace
from raydix.runtime.actors.torch_model import load_gpu_model
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.model.steps.runner import ModelRunner

ROOM_BYTES = 20 << 30
"""Weights and the largest steps take 15 GiB of it."""


def test_ranks_that_were_not_told_where_to_meet_are_refused() -> None:
    config = EngineConfig.model_validate(
        {
            "model": {"path": "/nowhere"},
            "parallel": {"tp": 2},
            "cache": {"l1": {"num_pages": 8}},
        }
    )

    with pytest.raises(ConfigError, match="rank 0 of a lane of 2 has no file"):
        load_gpu_model(config, RankPlace(rank=0, device_index=0))


@pytest.mark.gpu
def test_weights_pages_and_largest_steps_fill_the_fraction_and_stay_within_it(
    tmp_path: Path,
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SHAPES["dense_l16"]))
    torch.cuda.empty_cache()
    free_bytes, total_bytes = torch.cuda.mem_get_info()
    if free_bytes < ROOM_BYTES:
        pytest.skip(f"others use the GPU: {free_bytes} bytes are free, {ROOM_BYTES} needed")
    fraction = ROOM_BYTES / total_bytes
    config = EngineConfig.model_validate(
        {
            "model": {
                "path": str(tmp_path),
                "load_format": "dummy",
                "device": "cuda",
                "max_model_len": 16384,
            },
            "cache": {"l1": {"memory_fraction": fraction}, "l2": {"bytes_per_node": 1 << 30}},
            "scheduler": {"chunked_prefill_tokens": 8192, "max_running_requests": 64},
        }
    )
    torch.cuda.reset_peak_memory_stats()

    loaded = load_gpu_model(config, RankPlace(rank=0, device_index=0))
    model = loaded.prepare(loaded.report.num_pages)
    assert isinstance(model.runner, ModelRunner)
    model.runner.warm_up()
    torch.cuda.synchronize()

    # Pages and weights have addresses of their own, which torch does not count.
    mapped_bytes = model.pool_bytes + loaded.weights.held_bytes
    used = (torch.cuda.max_memory_reserved() + mapped_bytes) / total_bytes
    assert 0.9 * fraction < used <= 1.01 * fraction
