"""Pages quantised in L2 and L3, in the whole engine: near the cold run, hits, never mixed up."""

import shutil
from pathlib import Path

import pytest

from raydix.runtime.api.outputs import RequestOutput
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.model.families.table import Family
from raydix.runtime.testing.engine import InProcessEngine, in_process_engine
from tests.exactness.engines import (
    DEVICES,
    PAGE_SIZE,
    assert_all_exact,
    cacheable_tokens,
    count_tokens,
    engine_config,
    make_prompts,
    run,
)
from tests.exactness.poison import Poison, object_path, poison
from tests.exactness.reference import References
from tests.exactness.states import State

PROMPTS = make_prompts(47, [100, 81, 64, 37])
NUM_CACHEABLE = sum(cacheable_tokens(prompt) for prompt in PROMPTS)
CODECS = ["int8", "fp8"]
CASES = [
    (Family.QWEN3, "int8"),
    pytest.param(Family.QWEN3, "fp8", marks=pytest.mark.part),
    pytest.param(Family.MISTRAL, "int8", marks=pytest.mark.part),
    pytest.param(Family.GEMMA3, "fp8", marks=pytest.mark.part),
    pytest.param(Family.GEMMA4, "int8", marks=pytest.mark.part),
]
LAST_PAGE = len(PROMPTS[0]) // PAGE_SIZE - 1
NUM_TOKENS = 8
SAMPLING = {"temperature": 0.0, "logprobs": 20}
MAX_LOGPROB_ERROR = {"int8": 0.25, "fp8": 1.0}
"""The largest error of the likeliest tokens' logprobs; the reference model is far more sensitive
than a trained one.
"""


def codec_config(
    folder: Path, codec: str, l3: Path | None = None, device: str = "cpu"
) -> EngineConfig:
    model = {"device": device, "dtype": "float32"}
    return engine_config(folder, l3, model=model, cache={"codec": codec, "load": "always"})


def logprob_errors(cold: list[RequestOutput], warm: list[RequestOutput]) -> list[float]:
    """Differences at the first new token, over the cold run's likeliest tokens."""
    errors = []
    for left, right in zip(cold, warm, strict=True):
        [before, *_], [after, *_] = left.outputs[0].logprobs, right.outputs[0].logprobs
        errors += [
            abs(before[token].logprob - after[token].logprob)
            for token in before.keys() & after.keys()
        ]
    return errors


async def ask(engine: InProcessEngine) -> list[RequestOutput]:
    return await run(engine, PROMPTS, NUM_TOKENS, SAMPLING)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("family", "codec"), CASES)
async def test_a_hit_in_l2_is_counted_and_near_the_cold_run(
    references: References, family: Family, codec: str, device: str
) -> None:
    config = codec_config(references(family).folder, codec, device=device)
    async with in_process_engine(config) as engine:
        cold = await ask(engine)
        await engine.settle()
        await engine.flush_l1()

        warm = await ask(engine)

        assert count_tokens(warm, "l2") == NUM_CACHEABLE
        assert 0 < max(logprob_errors(cold, warm)) < MAX_LOGPROB_ERROR[codec]
        await engine.check()


@pytest.mark.parametrize(("family", "codec"), CASES)
async def test_a_wrong_page_would_be_noticed(
    references: References, family: Family, codec: str, tmp_path: Path
) -> None:
    """The poisoned control of the test above."""
    config = codec_config(references(family).folder, codec)
    async with in_process_engine(config) as engine:
        cold = await ask(engine)
        await engine.settle()
        await engine.flush_l1()
        poison(engine, tmp_path, State.L2, Poison.ZEROS, PROMPTS[0], PROMPTS[1])

        assert max(logprob_errors(cold, await ask(engine))) > MAX_LOGPROB_ERROR[codec]


async def test_what_never_left_l1_is_exact(references: References) -> None:
    reference = references(Family.QWEN3)
    async with in_process_engine(codec_config(reference.folder, "int8")) as engine:
        await run(engine, PROMPTS, NUM_TOKENS)
        outputs = await run(engine, PROMPTS, NUM_TOKENS)

        assert count_tokens(outputs, "l1") == NUM_CACHEABLE
        await assert_all_exact(engine, reference.expect(PROMPTS), outputs)


@pytest.mark.parametrize(("family", "codec"), CASES)
async def test_a_restart_finds_the_same_pages_in_l3(
    references: References, family: Family, codec: str, tmp_path: Path
) -> None:
    config = codec_config(references(family).folder, codec, tmp_path)
    async with in_process_engine(config) as engine:
        await run(engine, PROMPTS, 1)
        await engine.settle()
        await engine.flush_l1()
        from_l2 = await ask(engine)
        assert count_tokens(from_l2, "l2") == NUM_CACHEABLE
        await engine.check()

    async with in_process_engine(config) as engine:
        from_l3 = await ask(engine)
        assert count_tokens(from_l3, "l3") == NUM_CACHEABLE
        await engine.check()

    assert max(logprob_errors(from_l2, from_l3)) < 1e-4
    object_bytes = object_path(tmp_path, PROMPTS[0], LAST_PAGE).read_bytes()
    assert object_bytes[6:8] == {"int8": b"\1\0", "fp8": b"\2\0"}[codec]


async def test_codecs_do_not_see_each_others_objects(
    references: References, tmp_path: Path
) -> None:
    folder = references(Family.QWEN3).folder
    for codec in ("none", "int8", "fp8"):
        async with in_process_engine(codec_config(folder, codec, tmp_path)) as engine:
            outputs = await run(engine, PROMPTS, 1)
            assert count_tokens(outputs, "l3") == 0
            await engine.check()

    assert len(list(tmp_path.glob("*/manifest.json"))) == 3


async def test_an_object_of_another_codec_is_a_counted_miss(
    references: References, tmp_path: Path
) -> None:
    folder = references(Family.QWEN3).folder
    for codec in CODECS:
        async with in_process_engine(codec_config(folder, codec, tmp_path / codec)) as engine:
            await run(engine, PROMPTS[:1], 1)
            await engine.check()
    foreign, own = (object_path(tmp_path / codec, PROMPTS[0], 2) for codec in CODECS)
    assert foreign.stat().st_size == own.stat().st_size
    shutil.copy(foreign, own)

    async with in_process_engine(codec_config(folder, "fp8", tmp_path / "fp8")) as engine:
        outputs = await run(engine, PROMPTS[:1], 1)
        stats = await engine.check()

    assert count_tokens(outputs, "l3") == 2 * PAGE_SIZE
    assert stats["host"]["l3_reads_wrong_namespace"] == 1
