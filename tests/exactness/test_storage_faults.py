"""Bad objects and bad disks, through the whole engine: counted misses, never wrong tokens."""

import asyncio
import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from raydix.errors import ConfigError
from raydix.runtime.api.outputs import RequestOutput
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.model.families.table import Family
from raydix.runtime.storage.backends.corruption import Corruption, corrupt
from raydix.runtime.testing.engine import in_process_engine
from tests.exactness.engines import (
    PAGE_SIZE,
    assert_all_exact,
    cacheable_tokens,
    count_tokens,
    engine_config,
    make_prompts,
    run,
)
from tests.exactness.poison import object_path
from tests.exactness.reference import Reference, References
from tests.runtime.storage.backends.bad_objects import FOUND_AS

[PROMPT, OTHER] = make_prompts(61, [100, 100])
NUM_CACHEABLE = cacheable_tokens(PROMPT)
BAD_PAGE = 2
NUM_TOKENS = 24


async def store(config: EngineConfig) -> None:
    """Fill L3 with both prompts and stop."""
    async with in_process_engine(config) as engine:
        await run(engine, [PROMPT, OTHER], 1)
        await engine.check()


async def ask(
    config: EngineConfig, reference: Reference
) -> tuple[RequestOutput, dict[str, Any], dict[str, Any]]:
    """Start anew and ask for the first prompt: its exact output, the figures, the explanation."""
    async with in_process_engine(config, drain_timeout_s=0.1) as engine:
        outputs = await run(engine, [PROMPT], NUM_TOKENS)
        await assert_all_exact(engine, reference.expect([PROMPT]), outputs)
        explanation = await engine.explain(outputs[0].request_id)
        assert explanation is not None
        return outputs[0], await engine.check(), explanation


@pytest.mark.part
@pytest.mark.parametrize("kind", list(Corruption))
@pytest.mark.parametrize("backend", ["file", "nixl"])
async def test_bad_file_is_a_counted_miss_and_replaced(
    backend: str, kind: Corruption, references: References, tmp_path: Path
) -> None:
    if backend == "nixl":
        pytest.importorskip("nixl._api", reason="nixl is not installed", exc_type=ImportError)
    reference = references(Family.QWEN3)
    config = engine_config(
        reference.folder, cache={"l3": {"backend": backend, "path": str(tmp_path)}}
    )
    await store(config)
    path = object_path(tmp_path, PROMPT, BAD_PAGE)
    path.write_bytes(corrupt(path.read_bytes(), kind))

    output, stats, explanation = await ask(config, reference)

    num_good = BAD_PAGE * PAGE_SIZE
    assert output.num_cached_tokens == num_good
    assert count_tokens([output], "computed:bad_object") == NUM_CACHEABLE - num_good
    assert stats["host"][f"l3_reads_{FOUND_AS[kind].name.lower()}"] == 1
    assert {
        "start": num_good,
        "end": NUM_CACHEABLE,
        "source": "computed:bad_object",
    } in explanation["ranges"]
    healed, _, _ = await ask(config, reference)
    assert count_tokens([healed], "l3") == NUM_CACHEABLE


async def test_another_prompts_file_under_this_name_is_refused(
    references: References, tmp_path: Path
) -> None:
    reference = references(Family.QWEN3)
    config = engine_config(reference.folder, tmp_path)
    await store(config)
    shutil.copy(object_path(tmp_path, OTHER, BAD_PAGE), object_path(tmp_path, PROMPT, BAD_PAGE))

    output, stats, _ = await ask(config, reference)

    assert output.num_cached_tokens == BAD_PAGE * PAGE_SIZE
    assert stats["host"]["l3_reads_wrong_key"] == 1


async def test_missing_object_ends_the_match(references: References, tmp_path: Path) -> None:
    reference = references(Family.QWEN3)
    config = engine_config(reference.folder, tmp_path)
    await store(config)
    object_path(tmp_path, PROMPT, BAD_PAGE).unlink()

    output, _, _ = await ask(config, reference)

    assert output.num_cached_tokens == BAD_PAGE * PAGE_SIZE
    assert count_tokens([output], "computed:not_found") == NUM_CACHEABLE - BAD_PAGE * PAGE_SIZE


async def test_another_models_objects_are_not_seen(references: References, tmp_path: Path) -> None:
    await store(engine_config(references(Family.LLAMA).folder, tmp_path))
    reference = references(Family.QWEN3)

    output, stats, _ = await ask(engine_config(reference.folder, tmp_path), reference)

    assert output.num_cached_tokens == 0
    assert not any(name.startswith("l3_reads_") for name in stats["host"])
    assert len([folder for folder in tmp_path.iterdir() if folder.is_dir()]) == 2, (
        "one namespace per model"
    )


def test_folder_that_cannot_be_made_is_refused_at_start(
    references: References, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    config = engine_config(references(Family.QWEN3).folder, tmp_path / "file" / "l3")

    async def start() -> None:
        async with in_process_engine(config):
            pass

    with pytest.raises(ConfigError, match=r"cache\.l3\.path .* cannot be used"):
        asyncio.run(start())


@pytest.mark.parametrize(
    ("code", "counter"),
    [(errno.ENOSPC, "l3_writes_dropped_full"), (errno.EACCES, "l3_writes_dropped_failed")],
)
async def test_disk_that_takes_nothing_costs_only_the_writes(
    code: int, counter: str, references: References, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    reference = references(Family.QWEN3)
    config = engine_config(reference.folder, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", refuse)
        _, stats, _ = await ask(config, reference)

    assert stats["host"][counter] > 0
    assert not [path for path in tmp_path.glob("*/*/*") if path.is_file()], (
        "nothing is left half written"
    )
    output, _, _ = await ask(config, reference)
    assert output.num_cached_tokens == 0


async def test_store_of_no_size_takes_nothing(references: References, tmp_path: Path) -> None:
    reference = references(Family.QWEN3)
    l3 = {"backend": "file", "path": str(tmp_path), "max_bytes": 1}

    _, stats, _ = await ask(engine_config(reference.folder, cache={"l3": l3}), reference)

    assert stats["host"]["l3_writes_dropped_full"] > 0
    assert not list(tmp_path.glob("*/*/*.page"))


@pytest.mark.parametrize("fault", ["failure_fraction", "corrupt_fraction"])
@pytest.mark.parametrize("fraction", [0.3, 1.0])
async def test_unreliable_backend_never_changes_a_token(
    fault: str, fraction: float, references: References
) -> None:
    reference = references(Family.QWEN3_MOE)
    config = engine_config(
        reference.folder,
        cache={"l3": {"backend": "fake", "max_delay_s": 0.002, "seed": 5, fault: fraction}},
    )
    expected = reference.expect([PROMPT, OTHER])

    async with in_process_engine(config, drain_timeout_s=0.1) as engine:
        for _ in range(4):
            outputs = await run(engine, [PROMPT, OTHER], NUM_TOKENS)
            await assert_all_exact(engine, expected, outputs)
            await engine.settle()
            await engine.flush()
        await engine.check()
