"""Paths and models of whoever starts an engine, in a cluster that runs elsewhere already."""

import asyncio
from pathlib import Path

import pytest

from raydix.errors import CheckpointError
from raydix.runtime.actors.bootstrap.cluster import PrivateCluster
from raydix.runtime.api.client import AsyncLLM
from tests.hub_cache import COMMIT, lay_out
from tests.ray_cluster import own_name

pytestmark = [pytest.mark.ray, pytest.mark.slow]

SECTIONS = {
    "model": {"path": "org/name", "max_model_len": 256},
    "cache": {
        # Another L2 than that of the engine which tests share.
        "page_size": 32,
        "l1": {"num_pages": 32},
        "l2": {"bytes_per_node": "4MiB", "keep_s": 0},
        "l3": {"backend": "file", "path": "l3"},
    },
}


async def test_relative_paths_and_names_on_the_hub_mean_those_of_whoever_starts_the_engine(
    ray_cluster: PrivateCluster,
    checkpoint: Path,
    hub_cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lay_out(hub_cache, checkpoint)
    monkeypatch.chdir(tmp_path)
    async with await AsyncLLM.start(SECTIONS, name=own_name("places")) as engine:
        outputs = [each async for each in engine.generate(list(range(40)), {"max_tokens": 4})]
        assert len(outputs[-1].outputs[0].token_ids) == 4
        assert engine._engine._handle is not None
        assert engine._engine._handle.model_path == f"org/name@{COMMIT}"
        assert (await engine.attach_storage({"backend": "file", "path": "other"}))["detached"]

    # Drained at the end, so that what L2 held is written to both.
    assert list((tmp_path / "l3").glob("*/*/*.page"))
    assert list((tmp_path / "other").glob("*/*/*.page"))


async def test_model_that_nobody_has_is_an_error_before_anything_is_placed(
    hub_cache: Path,
) -> None:
    with pytest.raises(CheckpointError, match="hf download org/name"):
        await asyncio.wait_for(AsyncLLM.start("org/name", name=own_name("nobodys")), 60)
