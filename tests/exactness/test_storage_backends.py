"""Backends other than files, through the whole engine: a restart goes on from what they hold."""

from pathlib import Path
from typing import Any

import pytest

from raydix.runtime.in_process import in_process_engine
from raydix.runtime.model.spec import Family
from raydix.runtime.storage import hf3fs
from tests.exactness.engines import (
    assert_all_exact,
    cacheable_tokens,
    count_tokens,
    engine_config,
    make_prompts,
    run,
)
from tests.exactness.reference import NUM_TOKENS, References
from tests.runtime.storage.hf3fs_emulator import UsrbioEmulator
from tests.runtime.storage.plugin_package import install_documented_package
from tests.runtime.storage.redis_server import RedisServer

PROMPTS = make_prompts(83, [100, 64, 37])
NUM_CACHEABLE = sum(cacheable_tokens(prompt) for prompt in PROMPTS)


async def assert_restart_goes_on_from(l3: dict[str, Any], references: References) -> None:
    reference = references(Family.QWEN3)
    config = engine_config(reference.folder, cache={"l3": l3})
    async with in_process_engine(config) as engine:
        await run(engine, PROMPTS, 1)
        await engine.check()

    async with in_process_engine(config) as engine:
        outputs = await run(engine, PROMPTS, NUM_TOKENS)
        await assert_all_exact(engine, reference.expect(PROMPTS), outputs)
        assert count_tokens(outputs, "l3") == NUM_CACHEABLE
        await engine.check()
        flushed = await engine.flush(l3=True)
        assert flushed["l3"] == "OK"


async def test_redis(references: References) -> None:
    server = RedisServer()
    try:
        await assert_restart_goes_on_from({"backend": "redis", "url": server.url}, references)
        assert server.call(b"DBSIZE") == 0
    finally:
        server.kill()


async def test_3fs_emulated(references: References, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usrbio = UsrbioEmulator(tmp_path)
    monkeypatch.setattr(hf3fs, "_import_usrbio", lambda: usrbio)
    await assert_restart_goes_on_from({"backend": "hf3fs", "path": str(tmp_path / "l3")}, references)
    assert usrbio.links == []


async def test_documented_plugin(references: References, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = install_documented_package(tmp_path / "site")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    options = {"path": str(tmp_path / "objects.db")}
    await assert_restart_goes_on_from({"backend": "plugin", "name": name, "options": options}, references)
