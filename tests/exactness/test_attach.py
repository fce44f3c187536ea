"""Storage backends that come, change and go while requests run: none fails, no token differs."""

import asyncio
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from raydix.errors import BadRequest, ConfigError
from raydix.runtime.actors.supervision import engine_actors
from raydix.runtime.actors.supervision.core_settings import host_settings
from raydix.runtime.actors.supervision.spawn import ActorKind
from raydix.runtime.api.outputs import RequestOutput
from raydix.runtime.cache.host.settings import HostSettings
from raydix.runtime.model.families.table import Family
from raydix.runtime.testing.engine import InProcessEngine, in_process_engine
from tests.exactness.engines import (
    CACHING_KINDS,
    assert_all_exact,
    cacheable_tokens,
    count_tokens,
    engine_config,
    make_prompts,
    run,
)
from tests.exactness.l3_stores import l3_store
from tests.exactness.reference import References

PROMPTS = make_prompts(71, [100, 90, 80, 70], num_shared=40)
NUM_TOKENS = 8
NOBODY = {"backend": "redis", "url": "redis://:secret@127.0.0.1:1/0"}
NOBODYS_ERROR = "Redis at 127.0.0.1:1: [Errno 111] Connection refused"
NUM_CACHEABLE = sum(map(cacheable_tokens, PROMPTS))


def file_section(folder: Path) -> dict[str, Any]:
    return {"backend": "file", "path": str(folder)}


async def run_cold(engine: InProcessEngine) -> list[RequestOutput]:
    """Nothing comes from L1 or L2."""
    await engine.flush()
    return await run(engine, PROMPTS, NUM_TOKENS)


@pytest.mark.parametrize("backend", ["file", "redis", "plugin"])
async def test_attach_switch_and_detach_under_traffic_cost_no_request_and_no_token(
    backend: str, references: References, tmp_path: Path
) -> None:
    reference = references(Family.QWEN3)
    expected = reference.expect(PROMPTS)
    with l3_store(backend, tmp_path) as b:
        async with in_process_engine(engine_config(reference.folder)) as engine:
            rounds = await change_under_traffic(engine, file_section(tmp_path / "a"), b)
            for outputs in rounds:
                await assert_all_exact(engine, expected, outputs)
            assert count_tokens(await run_cold(engine), "l3") > 0
            await engine.check()


async def change_under_traffic(
    engine: InProcessEngine, a: dict[str, Any], b: dict[str, Any]
) -> list[list[RequestOutput]]:
    """Attach both in turn, detach twice, attach again; what was answered, round by round."""
    is_over = asyncio.Event()
    answered: asyncio.Queue[list[RequestOutput]] = asyncio.Queue()
    rounds: list[list[RequestOutput]] = []

    async def keep_asking() -> None:
        while not is_over.is_set():
            answered.put_nowait(await run_cold(engine))

    async def next_round() -> None:
        async with asyncio.timeout(60):
            rounds.extend([await answered.get(), await answered.get()])

    asking = asyncio.create_task(keep_asking())
    names = []
    for step in (a, b, None, None, a):
        await next_round()
        names.append(
            await (engine.detach_storage() if step is None else engine.attach_storage(step))
        )
    await next_round()
    is_over.set()
    await asking

    assert names == [
        {"attached": "file", "detached": None},
        {"attached": b["backend"], "detached": "file"},
        {"detached": b["backend"]},
        {"detached": None},
        {"attached": "file", "detached": None},
    ]
    return rounds


@pytest.mark.part
@pytest.mark.parametrize("family", CACHING_KINDS)
async def test_pages_of_an_attached_storage_are_those_that_a_cold_start_looks_for(
    family: Family, references: References, tmp_path: Path
) -> None:
    reference = references(family)
    async with in_process_engine(engine_config(reference.folder)) as engine:
        await run(engine, PROMPTS[:2], 1)
        await engine.settle()
        await engine.attach_storage(file_section(tmp_path))
        await run(engine, PROMPTS[2:], 1)
        await engine.check()
    async with in_process_engine(engine_config(reference.folder, tmp_path)) as engine:
        outputs = await run(engine, PROMPTS, NUM_TOKENS)
        assert count_tokens(outputs, "l3") == NUM_CACHEABLE
        await assert_all_exact(engine, reference.expect(PROMPTS), outputs)


@pytest.mark.parametrize("family", [Family.QWEN3, Family.GPT_OSS])
async def test_pages_that_storage_lost_are_written_again_and_found_after_a_restart(
    family: Family, references: References, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def impatient(*arguments: Any, **named: Any) -> HostSettings:
        settings = host_settings(*arguments, **named)
        return replace(settings, storage=replace(settings.storage, exists_interval_s=0.0))

    monkeypatch.setattr(engine_actors, "host_settings", impatient)
    reference = references(family)
    config = engine_config(reference.folder, tmp_path)
    async with in_process_engine(config) as engine:
        await run(engine, PROMPTS, 1)
        await engine.settle()
        objects = list(tmp_path.rglob("*.page"))
        for path in objects:
            path.unlink()
        await run(engine, PROMPTS, 1)
        stats = await engine.check()
        assert stats["host"]["l3_pages_lacking"] >= len(objects)
        assert set(tmp_path.rglob("*.page")) == set(objects)
    async with in_process_engine(config) as engine:
        outputs = await run(engine, PROMPTS, NUM_TOKENS)
        assert count_tokens(outputs, "l3") == NUM_CACHEABLE
        await assert_all_exact(engine, reference.expect(PROMPTS), outputs)


async def test_3fs_is_not_attached_to_an_arena_that_it_cannot_map(
    references: References, tmp_path: Path
) -> None:
    with l3_store("hf3fs_emulated", tmp_path) as section:
        async with in_process_engine(engine_config(references(Family.QWEN3).folder)) as engine:
            with pytest.raises(ConfigError, match="/dev/shm"):
                await engine.attach_storage(section)


async def test_failed_attach_changes_nothing(references: References, tmp_path: Path) -> None:
    reference = references(Family.QWEN3)
    (tmp_path / "file").touch()
    async with in_process_engine(engine_config(reference.folder, tmp_path / "l3")) as engine:
        await run(engine, PROMPTS, 1)
        await engine.settle()
        for section, words in (
            (file_section(tmp_path / "file"), "cache.l3.path"),
            ({"backend": "file"}, "cache.l3.path"),
            ({"backend": "fil", "path": "x"}, "cache.l3"),
            ({"backend": "redis", "url": "http://nowhere"}, "cache.l3.url"),
            (file_section(tmp_path / "other") | {"max_bytes": "1KiB"}, "less than the 6208 bytes"),
            (NOBODY, re.escape(NOBODYS_ERROR)),
        ):
            with pytest.raises(ConfigError, match=words):
                await engine.attach_storage(section)
        outputs = await run_cold(engine)
        assert count_tokens(outputs, "l3") == NUM_CACHEABLE
        stats = await engine.check()
        assert stats["restarts"]["storage"] == 0
        assert NOBODYS_ERROR in stats["storage_errors"]["redis"]["text"]
        assert "cache.l3.path" in stats["storage_errors"]["file"]["text"]


async def test_engine_whose_l3_does_not_answer_does_not_start_unless_it_may(
    references: References,
) -> None:
    reference = references(Family.QWEN3)
    config = engine_config(reference.folder, cache={"l3": NOBODY})
    with pytest.raises(ConfigError, match=re.escape(NOBODYS_ERROR) + ".*--lazy"):
        async with in_process_engine(config):
            raise AssertionError("the engine has started")

    config = engine_config(reference.folder, cache={"l3": {**NOBODY, "lazy": True}})
    # Its stop would wait for writes that nobody takes.
    async with in_process_engine(config, drain_timeout_s=0.1) as engine:
        outputs = await run(engine, PROMPTS, NUM_TOKENS)
        await assert_all_exact(engine, reference.expect(PROMPTS), outputs)
        last = (await engine.stats())["storage_errors"]["redis"]
        assert NOBODYS_ERROR in last["text"]
        assert last["num_errors"] > 0


@pytest.mark.parametrize(
    ("cache", "words"),
    [
        ({"l2": None}, "cache.l3 needs cache.l2"),
        ({"prefix_caching": False}, "cache.prefix_caching is false"),
    ],
)
async def test_attach_to_an_engine_that_cannot_use_it_is_refused(
    references: References, tmp_path: Path, cache: dict[str, Any], words: str
) -> None:
    async with in_process_engine(
        engine_config(references(Family.QWEN3).folder, cache=cache)
    ) as engine:
        with pytest.raises(ConfigError, match=words):
            await engine.attach_storage(file_section(tmp_path))


async def test_storage_that_cannot_be_kept_is_given_up_and_the_engine_goes_on(
    references: References, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reference = references(Family.QWEN3)
    async with in_process_engine(engine_config(reference.folder, tmp_path)) as engine:
        await run(engine, PROMPTS, 1)
        await engine.settle()
        storage = engine.spawner.latest(ActorKind.STORAGE)
        assert storage is not None
        storage.kill()
        while "storage" in await engine.stats():
            await asyncio.sleep(0.01)
        assert "is given up" in caplog.text
        outputs = await run_cold(engine)
        assert count_tokens(outputs, "l3") == 0
        assert await engine.attach_storage(file_section(tmp_path)) == {
            "attached": "file",
            "detached": None,
        }
        outputs = await run_cold(engine)
        assert count_tokens(outputs, "l3") == NUM_CACHEABLE
        await assert_all_exact(engine, reference.expect(PROMPTS), outputs)


async def test_a_flush_of_l3_that_is_not_there_is_refused_and_drops_nothing(
    references: References,
) -> None:
    async with in_process_engine(engine_config(references(Family.QWEN3).folder)) as engine:
        await run(engine, PROMPTS, NUM_TOKENS)
        with pytest.raises(BadRequest, match="has no L3 to flush"):
            await engine.flush(l3=True)

        assert count_tokens(await run(engine, PROMPTS, NUM_TOKENS), "l1") > 0
        await engine.check()
