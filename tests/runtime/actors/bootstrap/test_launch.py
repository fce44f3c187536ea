"""Starting, finding and losing engines, on a real Ray cluster."""

import asyncio
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import ray

from raydix.errors import CheckpointError, ConfigError, EngineDead
from raydix.runtime.actors.bootstrap import launch
from raydix.runtime.actors.bootstrap.cluster import PrivateCluster
from raydix.runtime.actors.bootstrap.launch import find_engine, start_engine
from raydix.runtime.api.client import AsyncLLM
from raydix.runtime.config.loading import load_config
from tests.ray_cluster import SharedEngine, own_name
from tests.runtime.actors.serve_process import here
from tests.shared_memory import left_since, shared_memory

pytestmark = [pytest.mark.ray, pytest.mark.slow]

ROOT = Path(__file__).parents[4]
DRIVER = """
import asyncio, sys
from raydix.runtime.api.client import AsyncLLM

async def main():
    cache = {"l1": {"num_pages": 64}, "l2": {"bytes_per_node": "4MiB"}}
    async with await AsyncLLM.start(sys.argv[1], name=sys.argv[2], cache=cache) as engine:
        async for output in engine.generate(list(range(40)), {"max_tokens": 4}):
            pass
        print("up", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""
FINDER = """
import asyncio, ray, sys
from raydix.runtime.api.client import AsyncLLM

async def main():
    async with await AsyncLLM.connect(sys.argv[1]) as engine:
        async for output in engine.generate(list(range(40)), {"max_tokens": 4, "temperature": 0}):
            pass
        print(len(output.outputs[0].token_ids), (await engine.stats())["restarts"]["gpu0"])
    assert not ray.is_initialized()

asyncio.run(main())
"""


@contextmanager
def killing(process: subprocess.Popen[str]) -> Iterator[None]:
    """Leave no driver behind, whatever fails."""
    try:
        yield
    finally:
        process.kill()


def session_processes(driver: int) -> list[str]:
    """Command lines of all processes that have a file of this driver's private folder open."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or int(entry.name) == driver:
            continue
        try:
            links = [os.readlink(link) for link in (entry / "fd").iterdir()]
            if any(link.startswith(f"/tmp/raydix-{driver}-") for link in links):
                found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip())
        except OSError:
            continue
    return found


def modes_in_tmp(driver: int) -> set[int]:
    """The modes of the folders in which this driver's engine is found and has its files."""
    mine = [Path(f"/tmp/raydix-user-{os.geteuid()}"), *Path("/tmp").glob(f"raydix-{driver}-*")]
    return {path.stat().st_mode & 0o777 for path in mine}


def test_nothing_is_left_ten_seconds_after_sigkill_of_the_driver(checkpoint: Path) -> None:
    memory_before = shared_memory()
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    for name in (
        "RAY_ADDRESS",
        "RAY_AUTH_MODE",
    ):  # as users have it: a private cluster, with token authentication
        environment.pop(name, None)
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(checkpoint), own_name("doomed")],
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
    )
    with driver, killing(driver):
        assert driver.stdout is not None
        assert driver.stdout.readline() == "up\n"
        found = subprocess.run(
            [sys.executable, "-c", FINDER, own_name("doomed")],
            env=environment,
            check=False,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert found.stdout == "4 0\n", found.stderr
        assert "WARNING" not in found.stderr
        assert modes_in_tmp(driver.pid) == {0o700}
        before = session_processes(driver.pid)
        for title in ("GpuActor", "NodeMemoryActor", "SchedulerActor", "SupervisorActor"):
            assert any("ray::" in process and title in process for process in before), before
        driver.kill()
        deadline_s = time.monotonic() + here(10.0)
        while time.monotonic() < deadline_s and (
            session_processes(driver.pid) or list(Path("/tmp").glob(f"raydix-{driver.pid}-*"))
        ):
            time.sleep(0.1)
    assert session_processes(driver.pid) == []
    assert list(Path("/tmp").glob(f"raydix-{driver.pid}-*")) == []
    assert left_since(memory_before) == set()


def test_too_few_gpus_are_told_before_ray_starts(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "is_to_be_private", lambda address: True)
    monkeypatch.setattr(launch, "count_gpus", lambda: 1)
    monkeypatch.setattr(launch, "join_cluster", lambda *_: pytest.fail("Ray was started"))
    config = load_config(
        {
            "model": {"path": str(checkpoint), "device": "cuda"},
            "cache": {"l2": None},
            "parallel": {"dp": 2},
        }
    )

    with pytest.raises(ConfigError, match=r"needs 2 GPU .* have 1 GPU\. .* model\.device to cpu"):
        start_engine(config, own_name("none"))


@pytest.mark.parametrize(
    ("device", "parallel", "words"),
    [
        ("cuda", {"dp": 100}, "100 GPU, .* on one node"),
        ("cpu", {"dp": 64}, "needs 64 CPU, .* on one node; .* 16 CPU"),
        ("cpu", {"tp": 3}, "heads cannot be divided"),
    ],
)
def test_engine_that_no_node_can_hold_is_refused_before_any_rank_starts(
    ray_cluster: PrivateCluster,
    checkpoint: Path,
    device: str,
    parallel: dict[str, int],
    words: str,
) -> None:
    config = load_config(
        {
            "model": {"path": str(checkpoint), "device": device},
            "cache": {"l2": None},
            "parallel": parallel,
        }
    )
    before = len(ray.util.list_named_actors(all_namespaces=True))
    with pytest.raises(ConfigError, match=words):
        start_engine(config, own_name("too-large"))
    assert len(ray.util.list_named_actors(all_namespaces=True)) == before


def test_missing_checkpoint_is_a_typed_error_and_frees_the_name(
    ray_cluster: PrivateCluster, tmp_path: Path
) -> None:
    config = load_config({"model": {"path": str(tmp_path)}, "cache": {"l2": None}})
    for _ in range(2):
        with pytest.raises(CheckpointError):
            start_engine(config, own_name("without-weights"))
    with pytest.raises(EngineDead):
        find_engine(own_name("without-weights"))


def test_arena_beyond_memory_is_a_config_error(
    ray_cluster: PrivateCluster, checkpoint: Path
) -> None:
    config = load_config(
        {"model": {"path": str(checkpoint)}, "cache": {"l2": {"bytes_per_node": "100TiB"}}}
    )
    with pytest.raises(ConfigError, match=r"cache\.l2\.bytes_per_node"):
        start_engine(config, own_name("greedy"))


def test_a_running_engine_has_its_cpus_and_its_arena_reserved(
    shared_engine: SharedEngine,
) -> None:
    groups = ray.util.placement_group_table().values()
    bundles = [
        bundle
        for group in groups
        if group["state"] == "CREATED"
        for bundle in group["bundles"].values()
    ]
    assert sum(bundle.get("CPU", 0.0) for bundle in bundles) >= 2

    # L2 is not in the group, which it outlives.
    arena_bytes = shared_engine.config.cache.l2.bytes_per_node
    reserved_bytes = ray.cluster_resources()["memory"] - ray.available_resources()["memory"]
    needed_bytes = sum(bundle.get("memory", 0.0) for bundle in bundles) + arena_bytes
    # Ray's sums of what engines before this one took and gave back are some kilobytes off.
    assert reserved_bytes >= 0.99 * needed_bytes


def test_second_engine_of_a_name_is_refused(shared_engine: SharedEngine) -> None:
    with pytest.raises(ConfigError, match=f"The name {shared_engine.name} is taken"):
        start_engine(shared_engine.config, shared_engine.name)
    assert find_engine(shared_engine.name).record == shared_engine.handle.record


async def test_flush_drops_l1_and_l2_and_says_how_much(shared_engine: SharedEngine) -> None:
    async with await AsyncLLM.connect(shared_engine.name) as engine:
        prompt = [(i * i + 5) % 199 for i in range(64)]
        async for _ in engine.generate(prompt, {"max_tokens": 2, "temperature": 0}):
            pass

        flushed = await engine.flush()

        assert flushed["l1_pages"] >= 4

        sources = {}
        async for output in engine.generate(
            prompt, {"max_tokens": 2, "temperature": 0}, "after-flush"
        ):
            sources = output.metrics.cached_tokens_by_source

        assert "l1" not in sources
        explanation = await engine.explain("after-flush")
        assert sum(part["end"] - part["start"] for part in explanation["ranges"]) == 64


async def test_counters_appear_on_the_metrics_endpoint_of_ray(shared_engine: SharedEngine) -> None:
    async with await AsyncLLM.connect(shared_engine.name) as engine:
        async for _ in engine.generate(list(range(40)), {"max_tokens": 2}):
            pass
    (node,) = ray.nodes()
    url = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
    wanted = {"ray_raydix_generation_tokens_total", "ray_raydix_l1_pages", "ray_raydix_l2_pages"}
    wanted |= {
        "ray_raydix_l3_batch_seconds_count",
        "ray_raydix_l3_active_batches",
        "ray_raydix_l3_breaker_state",
    }
    async with asyncio.timeout(45):  # Ray exports every 10 s
        while True:
            text = await asyncio.to_thread(
                lambda: urllib.request.urlopen(url, timeout=10).read().decode()
            )
            if wanted <= {line.partition("{")[0] for line in text.splitlines()}:
                break
            await asyncio.sleep(1.0)
