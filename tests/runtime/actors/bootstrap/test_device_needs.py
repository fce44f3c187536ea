"""What ranks take of their devices beside pages, told before any starts."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.model.model_shapes import SHAPES
from raydix.errors import ConfigError
from raydix.moe.dispatch.loopback import LOOPBACK
from raydix.moe.dispatch.protocol import DispatchShape
from raydix.moe.dispatch.symmetric_sizes import memory_bytes
from raydix.runtime.actors.bootstrap.device_needs import DeviceNeeds
from raydix.runtime.actors.bootstrap.engine_sizes import measure_checkpoint, size_engine
from raydix.runtime.actors.expert_place import expert_ranks_of
from raydix.runtime.actors.gpu_model import RankPlace
from raydix.runtime.config.loading import load_config
from raydix.runtime.model.checkpoint.dummy import make_dummy_model

MIB, GIB = 1 << 20, 1 << 30
TWO = {"dp": 2, "ep": 2}
CUDA: dict[str, Any] = {"cache": {"l2": None}}


def needs_of(folder: Path, shape: str = "moe_l12", **sections: Any) -> DeviceNeeds:
    (folder / "config.json").write_text(json.dumps(SHAPES[shape]))
    config = load_config(CUDA | {"model": {"path": str(folder), "device": "cuda"}}, sections)
    return size_engine(config, measure_checkpoint(config)).needs


@pytest.mark.parametrize("transport", ["auto", "fp8"])
@pytest.mark.parametrize("parallel", [TWO, {"tp": 2, "ep": 2}, {"dp": 2, "tp": 2, "ep": 4}])
def test_buffers_are_told_as_large_as_a_start_makes_them(
    tmp_path: Path, parallel: dict[str, int], transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a start asks for them, on a GPU that is made up."""
    shape = {**SHAPES["moe_l12"], "num_hidden_layers": 1, "num_experts": 8}
    (tmp_path / "config.json").write_text(json.dumps(shape))
    config = load_config(
        CUDA | {"model": {"path": str(tmp_path), "device": "cuda"}},
        {"experts": {"transport": transport}, "parallel": parallel},
    )
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    ranks = expert_ranks_of(
        config, RankPlace(rank=0, device_index=0, meeting="meeting"), torch.device("cuda", 0)
    )
    assert ranks is not None
    asked: list[DispatchShape] = []

    def connect(shape: DispatchShape) -> object:
        asked.append(shape)
        return LOOPBACK

    one = replace(ranks, connect=connect)
    cpu = torch.device("cpu")
    make_dummy_model(tmp_path, device=cpu, dtype=torch.bfloat16, expert_ranks=one)

    told = size_engine(config, measure_checkpoint(config)).needs.buffer_bytes
    assert told == memory_bytes(asked[0]) > 0


def test_buffers_are_those_of_the_backend_and_of_the_tokens_of_a_step(tmp_path: Path) -> None:
    auto = needs_of(tmp_path, parallel=TWO).buffer_bytes
    # Two sets, for 2048 tokens and 128 decodes of each of both ranks, and those of one back.
    rows_bytes = 2 * 3 * 2176 * 2048 * 2
    assert rows_bytes <= auto < 1.02 * rows_bytes
    assert needs_of(tmp_path, parallel=TWO, experts={"dispatch": "symmetric"}).buffer_bytes == auto
    for dispatch in ("nccl", "deepep"):
        asked = {"dispatch": dispatch}
        assert needs_of(tmp_path, parallel=TWO, experts=asked).buffer_bytes == 0
    assert needs_of(tmp_path).buffer_bytes == 0
    small = {"l1": {"num_pages": 64, "memory_fraction": None}}
    on_cpu = needs_of(tmp_path, parallel=TWO, model={"device": "cpu"}, cache=small)
    assert on_cpu.num_bytes == on_cpu.weight_bytes

    large = {"chunked_prefill_tokens": 8192}
    assert needs_of(tmp_path, parallel=TWO, scheduler=large).buffer_bytes > 3 * auto


def test_buffers_that_do_not_fit_are_refused_by_what_takes_the_memory(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SHAPES["moe_l12"]))
    sections = {
        "parallel": {"dp": 8, "ep": 8},
        "scheduler": {"chunked_prefill_tokens": 65536},
    }
    config = load_config(CUDA | {"model": {"path": str(tmp_path), "device": "cuda"}}, sections)
    model = measure_checkpoint(config)

    with pytest.raises(ConfigError, match="leaves too little for KV, as weights take ") as raised:
        size_engine(config, model, 20 * GIB)
    told = r" and buffers of experts\.dispatch 7\.5\d*GiB; expected room for a page"
    assert re.search(told, str(raised.value))
    assert "lower scheduler.chunked_prefill_tokens" in str(raised.value)
    assert "experts.dispatch to nccl" in str(raised.value)


def test_captured_steps_take_what_the_largest_of_them_holds(tmp_path: Path) -> None:
    def graphs(shape: str = "dense_l16", chunk: int = 2048, **sections: Any) -> int:
        scheduler = {"chunked_prefill_tokens": chunk, "max_running_requests": 64}
        return needs_of(tmp_path, shape, scheduler=scheduler, **sections).graph_bytes

    usual, large = graphs(), graphs(chunk=8192)
    # A start kept 292 MiB of this model for them, on an H200 (docs/operations.md).
    assert 292 * MIB < usual < large < 2 * GIB
    assert graphs(chunk=16384) < large, "steps of as many tokens are not captured"
    assert graphs("qwen3_32b_l16") > 1.5 * usual - 256 * MIB, "it is as wide again"
    assert graphs(parallel={"tp": 2}) < usual
    # A lane that shares experts has places for the rows of both.
    assert graphs("moe_l12", parallel=TWO) > 1.5 * graphs("moe_l12") - 256 * MIB


def test_all_of_it_is_told_with_what_takes_it() -> None:
    assert str(DeviceNeeds(weight_bytes=3 * GIB)) == "weights take 3GiB"
    needs = DeviceNeeds(weight_bytes=GIB, step_bytes=MIB, graph_bytes=MIB, buffer_bytes=GIB)
    assert str(needs) == (
        "weights take 1GiB, the largest steps 1MiB, captured steps 1MiB and buffers of "
        "experts.dispatch 1GiB"
    )
    assert needs.num_bytes == 2 * GIB + 2 * MIB
