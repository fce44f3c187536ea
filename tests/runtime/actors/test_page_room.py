"""What is left for pages of a GPU's memory, and that buffers of dispatch are counted there."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from raydix.errors import ConfigError
from raydix.moe.dispatch.loopback import Loopback
from raydix.runtime.actors import expert_place, torch_model
from raydix.runtime.actors.gpu_model import RankPlace
from raydix.runtime.actors.page_room import pages_with_room
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.config.kv_layout import GroupKind, KvGroup, KvLayout
from raydix.runtime.config.kv_shard import KvShard
from raydix.runtime.config.loading import load_config
from raydix.runtime.model.families.table import Family
from tests.checkpoints import make_checkpoint

GROUP = KvGroup(kind=GroupKind.FULL, layers=(0,), num_kv_heads=1, head_dim=64)
SHARD = KvShard(layout=KvLayout(page_size=16, dtype="float32", dtype_bytes=4, groups=(GROUP,)))
PAGE_BYTES = SHARD.page_bytes(0)
GPU = torch.device("cuda", 0)


@pytest.fixture
def config(monkeypatch: pytest.MonkeyPatch) -> EngineConfig:
    """Half of a GPU that has room for 2000 pages, of which torch has taken 100."""
    total = SimpleNamespace(total_memory=2000 * PAGE_BYTES)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: total)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 100 * PAGE_BYTES)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    cache: dict[str, Any] = {"l1": {"memory_fraction": 0.5}, "l2": {"bytes_per_node": "1GiB"}}
    return load_config({"model": {"path": "m", "device": "cuda"}, "cache": cache})


def test_buffers_take_what_pages_would_have_had(config: EngineConfig) -> None:
    # One page is padding.
    assert pages_with_room(config, SHARD, 0, GPU) == (899,)
    held = 300 * PAGE_BYTES
    assert pages_with_room(config, SHARD, PAGE_BYTES, GPU, buffer_bytes=held) == (598,)


def test_buffers_that_leave_no_page_are_named(config: EngineConfig) -> None:
    held = 900 * PAGE_BYTES
    with pytest.raises(ConfigError, match=rf"largest steps and {held} bytes of buffers of") as told:
        pages_with_room(config, SHARD, 0, GPU, buffer_bytes=held)
    assert "lower scheduler.chunked_prefill_tokens" in str(told.value)
    with pytest.raises(ConfigError, match=r"largest steps; expected .* Raise it, or use a smaller"):
        pages_with_room(config, SHARD, held, GPU)


class Roomy(Loopback):
    """A dispatcher that keeps memory of its own."""

    buffer_bytes = 12345


def test_a_rank_counts_the_buffers_of_its_dispatcher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_checkpoint(tmp_path, Family.QWEN3_MOE, seed=3)
    config = load_config(
        {
            "model": {"path": str(folder)},
            "parallel": {"dp": 2, "ep": 2},
            "experts": {"rebalance": "none", "host_store": False},
        }
    )
    told: list[int] = []

    def note(*arguments: Any, buffer_bytes: int) -> tuple[int, ...]:
        told.append(buffer_bytes)
        return pages_with_room(*arguments)

    monkeypatch.setattr(torch_model, "pages_with_room", note)
    monkeypatch.setattr(expert_place, "connect_dispatcher", lambda *places, device: Roomy())
    place = RankPlace(rank=0, device_index=0, meeting=str(tmp_path / "meeting"))
    torch_model.load_gpu_model(config, place)

    assert told == [12345]
