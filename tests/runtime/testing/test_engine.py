"""An engine in one process, around a model that makes its tokens up."""

import asyncio
import gc
import json
import logging
import sys
import threading
import weakref
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from raydix.errors import AccountingError, CheckpointError, ConfigError, EngineDead
from raydix.runtime import garbage
from raydix.runtime.actors.bootstrap.engine_sizes import measure_checkpoint, size_engine
from raydix.runtime.actors.gpu_model import BuildModel, GpuModel, LoadedGpuModel, RankPlace
from raydix.runtime.actors.scheduler import SchedulerActor
from raydix.runtime.actors.supervision.arena_registry import PlannedArena
from raydix.runtime.actors.supervision.restarts import Supervision
from raydix.runtime.actors.supervision.spawn import ActorKind
from raydix.runtime.actors.supervision.supervisor import SupervisorActor
from raydix.runtime.actors.torch_builder import build_torch_model
from raydix.runtime.config import storage_libraries
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.config.loading import load_config
from raydix.runtime.model.families.table import Family
from raydix.runtime.testing.engine import InProcessEngine, in_process_engine
from raydix.runtime.testing.sleeping_runner import SleepingRunner, build_sleeping_model
from raydix.runtime.testing.spawner import InProcessSpawner
from raydix.runtime.tiers.host_arena import HostArena
from tests.checkpoints import make_checkpoint

CONFIG = load_config(
    {
        "model": {"path": "unused", "max_model_len": 256},
        "parallel": {"dp": 2},
        "cache": {"l1": {"num_pages": 32}, "l2": None},
    }
)
BUILD = partial(build_sleeping_model, step_s=0.0)


async def generate(engine: InProcessEngine, num_tokens: int) -> list[int]:
    """The answer to some prompt."""
    params = {"max_tokens": num_tokens, "temperature": 0.0, "output_kind": "final"}
    [output] = [output async for output in engine.client.generate(list(range(40)), params)]
    return output.outputs[0].token_ids


def test_an_engine_that_has_stopped_leaves_nothing_in_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # As outside of tests, where actors keep the collector from all that there is.
    monkeypatch.setattr(garbage, "gc", gc)

    async def run_engine() -> list[weakref.ref[Any]]:
        async with in_process_engine(CONFIG, BUILD) as engine:
            await generate(engine, 4)
            assert gc.get_freeze_count() > 0
            kinds = (ActorKind.SCHEDULER, ActorKind.GPU)
            return [weakref.ref(engine.spawner.latest(kind).plain) for kind in kinds]

    actors = asyncio.run(run_engine())
    gc.collect()

    assert [actor() for actor in actors] == [None, None]


async def test_tokens_come_back_and_the_figures_add_up() -> None:
    async with in_process_engine(CONFIG, BUILD) as engine:
        assert len(await generate(engine, 20)) == 20
        stats = await engine.check()
        dropped = await engine.flush()
        after = await engine.check()

    assert set(stats) == {"scheduler", "gpu0", "gpu1", "restarts", "storage_errors"}
    assert stats["scheduler"]["generation_tokens"] == 20
    assert dropped == {"l1_pages": stats["scheduler"]["l1_cached_pages"]}
    assert after["scheduler"]["l1_cached_pages"] == 0


async def test_settle_names_what_is_left() -> None:
    async with in_process_engine(CONFIG, partial(build_sleeping_model, step_s=0.01)) as engine:
        outputs = engine.client.generate(list(range(40)), {"max_tokens": 200, "temperature": 0.0})
        await anext(outputs)
        with pytest.raises(AccountingError, match=r"scheduler\.num_requests_running"):
            await engine.settle(timeout_s=0.02)
        await outputs.aclose()
        await engine.check()


async def test_actor_that_cannot_go_on_ends_the_engine() -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("the device is gone")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SleepingRunner, "execute", fail)
        async with in_process_engine(CONFIG, BUILD, drain_timeout_s=0.1) as engine:
            with pytest.raises(EngineDead):
                await generate(engine, 4)


@pytest.mark.parametrize("is_drained", [True, False])
async def test_a_stop_that_leaves_pages_uncopied_says_so(
    is_drained: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def drain(scheduler: SchedulerActor, timeout_s: float) -> bool:
        return is_drained

    monkeypatch.setattr(SchedulerActor, "drain", drain)
    async with in_process_engine(CONFIG, BUILD) as engine:
        await generate(engine, 4)

    assert ("before all pages were copied to L2" in caplog.text) == (not is_drained)


class ShrinkingDevice:
    """A device that has room for fewer pages with each model."""

    def __init__(self, *counts: int) -> None:
        self._counts = iter(counts)
        self.prepared: list[tuple[int, ...]] = []
        self.twice = threading.Event()

    def build_model(self, config: EngineConfig, place: RankPlace) -> LoadedGpuModel:
        """Build a sleeping model that has fewer pages than the one before."""
        loaded = build_sleeping_model(CONFIG, place, step_s=0)
        report = replace(loaded.report, num_pages=(next(self._counts),))

        def prepare(num_pages: tuple[int, ...]) -> GpuModel:
            self.prepared.append(num_pages)
            if len(self.prepared) == 2:
                self.twice.set()
            return loaded.prepare(num_pages)

        return LoadedGpuModel(report=report, prepare=prepare)


async def test_a_rank_that_is_made_again_has_the_pages_that_the_scheduler_counts_on() -> None:
    l1 = {"num_pages": None, "memory_fraction": 0.5}
    config = load_config(
        {
            "model": {"path": "unused", "device": "cuda", "max_model_len": 256},
            "cache": {"page_size": 16, "l1": l1, "l2": None},
        }
    )
    device = ShrinkingDevice(32, 20)
    spawner = InProcessSpawner(device.build_model)
    supervisor = SupervisorActor(
        name="t", config=config, spawner=spawner, supervision=Supervision()
    )
    facts = await supervisor.start()
    first = spawner.latest(ActorKind.GPU)
    assert first is not None

    first.kill()

    assert await asyncio.to_thread(device.twice.wait, 20)
    assert device.prepared == [(32,), (32,)]
    assert facts.num_pages == (32,)
    await supervisor.stop()


async def test_a_scheduler_that_ends_just_before_the_engine_serves_costs_no_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spawner = InProcessSpawner(BUILD)
    wait_ready = SchedulerActor.wait_ready
    asked: list[SchedulerActor] = []

    async def ending_once(scheduler: SchedulerActor) -> None:
        asked.append(scheduler)
        if len(asked) == 1:
            first = spawner.latest(ActorKind.SCHEDULER)
            assert first is not None
            first.kill()
            await first.wait_ended()
            raise EngineDead("its process ended")
        await wait_ready(scheduler)

    monkeypatch.setattr(SchedulerActor, "wait_ready", ending_once)
    supervisor = SupervisorActor(
        name="t", config=CONFIG, spawner=spawner, supervision=Supervision()
    )
    await supervisor.start()
    assert len(set(asked)) == 2
    await supervisor.stop()


async def test_a_clean_stop_ends_storage_before_it_can_miss_its_host_memory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    path = make_checkpoint(tmp_path / "model", Family.LLAMA, seed=0)
    cache = {
        "l1": {"num_pages": 32},
        "l2": {"bytes_per_node": "1MiB"},
        "l3": {"backend": "fake"},
    }
    async with in_process_engine(load_config(path, {"cache": cache})) as engine:
        assert len(await generate(engine, 2)) == 2

    told = [each.getMessage() for each in caplog.records]
    assert any(text.startswith("linked to HostMemory") for text in told)
    assert [text for text in told if "HostMemory is lost" in text] == []


async def test_a_library_that_l3_lacks_is_told_before_any_weight_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(storage_libraries.LIBRARIES, "fake", storage_libraries.LIBRARIES["s3"])
    monkeypatch.setattr(storage_libraries.importlib.util, "find_spec", lambda name: None)
    monkeypatch.delitem(sys.modules, "obstore", raising=False)
    loaded: list[RankPlace] = []

    def build(config: EngineConfig, place: RankPlace) -> LoadedGpuModel:
        loaded.append(place)
        return BUILD(config, place)

    cache = {"l1": {"num_pages": 32}, "l2": {"bytes_per_node": "1MiB"}, "l3": {"backend": "fake"}}
    config = load_config({"model": {"path": "unused", "max_model_len": 256}, "cache": cache})
    spawner = InProcessSpawner(build)
    supervisor = SupervisorActor(
        name="t", config=config, spawner=spawner, supervision=Supervision()
    )
    with pytest.raises(ConfigError, match=r"obstore is not installed.*'raydix\[s3\]'"):
        await supervisor.start()

    assert not loaded
    assert spawner.latest(ActorKind.GPU) is None


def planned_supervisor(
    checkpoint: Path, extra_bytes: int, build_model: BuildModel
) -> SupervisorActor:
    """An engine whose arena is planned with so many bytes more than ranks will ask for."""
    tiers = {"l1": {"num_pages": 32}, "l2": {"bytes_per_node": "4MiB"}}
    config = load_config({"model": {"path": str(checkpoint)}, "cache": tiers})
    sizes = size_engine(config, measure_checkpoint(config))
    assert sizes.arena_bytes is not None
    return SupervisorActor(
        name="t",
        config=config,
        spawner=InProcessSpawner(build_model),
        supervision=Supervision(max_crashes=0),
        arena=PlannedArena(layout=sizes.layout, size_bytes=sizes.arena_bytes + extra_bytes),
    )


async def test_a_planned_arena_is_made_while_weights_are_read(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_made = threading.Event()
    create = HostArena.create

    def creating(*arguments: Any, **options: Any) -> HostArena:
        arena = create(*arguments, **options)
        is_made.set()
        return arena

    def load(config: EngineConfig, place: RankPlace) -> LoadedGpuModel:
        if not is_made.wait(20):
            raise AccountingError("the arena waits for the weights")
        return build_torch_model(config, place)

    monkeypatch.setattr(HostArena, "create", creating)
    supervisor = planned_supervisor(checkpoint, 0, load)
    await supervisor.start()
    await supervisor.stop()


async def test_an_arena_that_does_not_fit_what_ranks_have_is_refused(checkpoint: Path) -> None:
    supervisor = planned_supervisor(checkpoint, 1 << 20, build_torch_model)
    with pytest.raises(AccountingError, match="planned"):
        await supervisor.start()


async def test_wrong_model_is_refused_at_start() -> None:
    def fail(config: EngineConfig, place: RankPlace) -> LoadedGpuModel:
        raise AccountingError(f"no device {place.device_index}")

    with pytest.raises(AccountingError, match="no device"):
        async with in_process_engine(CONFIG, fail):
            pass


async def test_a_model_that_ranks_with_shared_experts_cannot_load_is_refused_with_its_reason(
    tmp_path: Path,
) -> None:
    make_checkpoint(tmp_path, Family.QWEN3_MOE, seed=0, num_hidden_layers=2)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "hidden_act": "relu"}))
    config = load_config(
        {"model": {"path": str(tmp_path)}, "parallel": {"dp": 2, "ep": 2}, "cache": {"l2": None}}
    )

    with pytest.raises(CheckpointError, match="The activation is 'relu'"):
        async with in_process_engine(config):
            pass
