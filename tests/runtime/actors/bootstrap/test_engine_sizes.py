"""Sizes that are told before a start, against those that a start finds."""

from pathlib import Path
from typing import Any

import pytest
import torch

from raydix.errors import CheckpointError, ConfigError
from raydix.runtime.actors.bootstrap import engine_sizes
from raydix.runtime.actors.bootstrap.engine_sizes import EngineSizes, measure_checkpoint
from raydix.runtime.actors.gpu_model import RankPlace
from raydix.runtime.actors.torch_model import load_gpu_model
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.config.loading import load_config
from raydix.runtime.model.checkpoint.checkpoint import load_model
from raydix.runtime.model.families.table import Family
from tests.checkpoints import make_checkpoint

GIB = 1 << 30


@pytest.fixture(scope="module", params=[Family.QWEN3, Family.QWEN3_MOE, Family.GEMMA3])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path = make_checkpoint(tmp_path_factory.mktemp("model"), request.param, seed=3)
    return made


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path = make_checkpoint(tmp_path_factory.mktemp("plain"), Family.QWEN3, seed=3)
    return made


def size_engine(config: EngineConfig, total_device_bytes: int | None = None) -> EngineSizes:
    return engine_sizes.size_engine(config, measure_checkpoint(config), total_device_bytes)


def config_of(folder: Path, **sections: Any) -> EngineConfig:
    return load_config({"model": {"path": str(folder)}}, sections)


def cuda_config(folder: Path, **l1: Any) -> EngineConfig:
    cache = {"l1": l1, "l2": {"bytes_per_node": "1GiB"}}
    return config_of(folder, model={"device": "cuda"}, cache=cache)


def test_told_sizes_are_those_of_the_loaded_model(folder: Path) -> None:
    config = config_of(folder)
    sizes = size_engine(config)
    report = load_gpu_model(config, RankPlace(rank=0, device_index=0)).report
    model = load_model(folder, device=torch.device("cpu"), dtype=torch.float32)

    assert sizes.layout == report.layout
    assert sizes.num_pages == report.num_pages
    held = {each.data_ptr(): each.nbytes for each in model.decoder.parameters()}
    assert sizes.needs.weight_bytes == sum(held.values())


def test_two_ranks_hold_about_half_each(plain: Path) -> None:
    one, two = (size_engine(config_of(plain, parallel={"tp": tp})) for tp in (1, 2))
    assert 0.5 * one.needs.weight_bytes <= two.needs.weight_bytes < 0.6 * one.needs.weight_bytes
    assert two.l1_bytes is not None
    assert one.l1_bytes == 2 * two.l1_bytes
    assert one.arena_bytes == two.arena_bytes


def test_ranks_that_share_experts_hold_their_share_and_what_is_beyond_it(
    tmp_path: Path,
) -> None:
    folder = make_checkpoint(tmp_path, Family.QWEN3_MOE, seed=3)
    alone = size_engine(config_of(folder))
    parallel = {"dp": 2, "ep": 2}
    none = {"rebalance": "none", "spare_per_rank": 0}
    bare = size_engine(config_of(folder, parallel=parallel, experts=none))
    spare = size_engine(config_of(folder, parallel=parallel, experts={"spare_per_rank": 3}))

    assert alone.expert_store_bytes == 0
    # Six experts: three are a rank's share.
    assert bare.needs.weight_bytes == alone.needs.weight_bytes - bare.expert_store_bytes // 2
    assert spare.needs.weight_bytes == alone.needs.weight_bytes


def test_ranks_that_do_not_fit_the_heads_are_refused(plain: Path) -> None:
    with pytest.raises(ConfigError, match=r"parallel\.tp is 3.*heads cannot be divided"):
        size_engine(config_of(plain, parallel={"tp": 3}))


def test_sharing_experts_that_are_not_there_is_refused(plain: Path) -> None:
    with pytest.raises(ConfigError, match="has no experts"):
        size_engine(config_of(plain, parallel={"dp": 2, "ep": 2}))


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError):
        size_engine(config_of(tmp_path))


def test_pages_by_a_fraction_are_known_once_the_device_is(plain: Path) -> None:
    config = cuda_config(plain, memory_fraction=0.5)
    unknown, known = size_engine(config), size_engine(config, 80 * GIB)
    assert unknown.num_pages is None
    assert unknown.arena_bytes == GIB
    assert known.device_bytes is not None
    assert 0.49 * 80 * GIB < known.device_bytes <= 40 * GIB
    assert known.needs.step_bytes > 0


def test_a_device_that_is_too_small_is_refused(plain: Path) -> None:
    config = cuda_config(plain, memory_fraction=0.5)
    with pytest.raises(ConfigError, match=r"memory_fraction 0\.5 of 512MiB leaves too"):
        size_engine(config, GIB // 2)
