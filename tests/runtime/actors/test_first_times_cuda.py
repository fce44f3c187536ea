"""After a rank has rehearsed, no step that a Scheduler may ask for compiles or finds a kernel."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.model.model_shapes import SHAPES, write_shape
from raydix.runtime.actors.gpu_model import RankPlace
from raydix.runtime.actors.torch_builder import build_torch_model
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.config.loading import load_config
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.plan import StepPlan
from tests.kernels.random_plans import MAX_MODEL_LEN, MAX_TOKENS, random_plan

pytestmark = [pytest.mark.gpu, pytest.mark.slow]
NUM_STEPS = 150


def configuration(folder: Path, chunk_tokens: int) -> EngineConfig:
    return load_config(
        {"model": {"path": str(folder), "load_format": "dummy", "device": "cuda"}},
        {
            "model": {"max_model_len": MAX_MODEL_LEN},
            "cache": {"page_size": 64, "l1": {"num_pages": 1024}, "l2": None},
            "scheduler": {"chunked_prefill_tokens": chunk_tokens, "max_running_requests": 130},
        },
    )


@pytest.mark.parametrize(
    "shape",
    ["dense_l16", "moe_l12", "gpt-oss-20b", "latent_l61", "gemma-2-9b", "qwen3.6-35b-a3b-l12"],
)
def test_traffic_of_any_shape_finds_its_kernels_loaded(
    shape: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "kernels"))
    folder = write_shape({**SHAPES[shape], "num_hidden_layers": 6}, tmp_path / "model")
    loaded = build_torch_model(configuration(folder, MAX_TOKENS), RankPlace(rank=0, device_index=0))
    model = loaded.prepare((1024,) * len(loaded.report.layout.groups))
    model.enter_thread()
    model.rehearse()
    before = model.stats()

    taken: list[int] = []
    for step in range(NUM_STEPS):
        plan = random_plan(np.random.default_rng(step), step)
        model.runner.apply(StepPlan(step=0, removed_slots=int32_array(taken)))
        model.runner.apply(plan)
        taken = plan.row_slots.tolist()
        if taken:
            model.runner.execute(plan, lambda load, layer: None).to_result(0, step, 0.0)

    figures = model.stats()
    assert figures["kernels_compiled_serving"] == figures["kernels_found_serving"] == 0
    assert figures["kernels_compiled_start"] == before["kernels_compiled_start"] > 0
