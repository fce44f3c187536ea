"""A token whose embedding is not finite: requests that hold it fail, and all others are exact."""

import asyncio
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from raydix.errors import ModelFailed
from raydix.runtime.model.families.table import Family
from raydix.runtime.testing.engine import InProcessEngine, in_process_engine
from tests.exactness.engines import (
    PAGE_SIZE,
    VOCAB_SIZE,
    assert_all_exact,
    engine_config,
    make_prompts,
    run,
)
from tests.exactness.reference import NUM_TOKENS, Expected, Reference, References

PROMPTS = make_prompts(7, [100, 37, 5, 64])


def break_token(folder: Path, reference: Reference, expected: list[Expected]) -> int:
    """A copy of the checkpoint in which one token that nobody says has no finite embedding."""
    shutil.copytree(reference.folder, folder)
    said = {token for each in expected for token in (*each.prompt, *each.token_ids)}
    token = next(iter(set(range(VOCAB_SIZE)) - said))

    [path] = folder.glob("*.safetensors")
    weights = load_file(path)
    weights["model.embed_tokens.weight"][token] = float("nan")
    save_file(weights, path, metadata={"format": "pt"})
    return token


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_broken_requests_fail_alone_and_leave_pages_that_others_can_use(
    references: References, tmp_path: Path, temperature: float, caplog: pytest.LogCaptureFixture
) -> None:
    reference = references(Family.LLAMA)
    expected = reference.expect(PROMPTS)
    token = break_token(tmp_path / "model", reference, expected)
    # L1 has room for little more than these prompts: pages that held NaN are used again at once.
    config = engine_config(
        tmp_path / "model",
        cache={"l1": {"num_pages": 32}, "l2": None},
        scheduler={"chunked_prefill_tokens": 8 * PAGE_SIZE},
    )

    async def fail(engine: InProcessEngine, place: int) -> None:
        prompt = (*PROMPTS[0][:place], token, *PROMPTS[0][place:])
        with pytest.raises(ModelFailed, match="not finite"):
            await run(engine, [prompt], 4, {"temperature": temperature, "top_p": 0.9})

    async with in_process_engine(config) as engine:
        for _ in range(3):
            (outputs, *_) = await asyncio.gather(
                run(engine, PROMPTS, NUM_TOKENS), *(fail(engine, place) for place in (0, 50, 99))
            )
            await assert_all_exact(engine, expected, outputs)
        stats = await engine.check()

    assert stats["scheduler"]["failed_model_failed"] == 9
    told = [record for record in caplog.records if "is not finite" in record.message]
    assert len(told) == 9, "the engine's log says so, too"
