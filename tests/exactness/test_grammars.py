"""Tokens sampled by grammars are the same alone, in a crowd that is retracted, and at two ranks."""

import asyncio
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

pytest.importorskip("xgrammar")

from raydix.runtime.api.tokenizer import load_tokenizer
from raydix.runtime.cli.demo_checkpoint import write_demo_checkpoint
from raydix.runtime.config.loading import load_config
from raydix.runtime.testing.engine import in_process_engine
from raydix.runtime.testing.llm import InProcessLLM

NUM_REQUESTS = 8


def schema_of(number: int) -> dict[str, Any]:
    """Three schemas, which several requests have in common."""
    return {
        "type": "array",
        "minItems": 6,
        "maxItems": 9,
        "items": {"enum": [f"kind {number % 3}", number % 3, True]},
    }


async def generate(llm: InProcessLLM, number: int) -> str:
    params = {
        "max_tokens": 150,
        "seed": number,
        "output_kind": "final",
        "structured_outputs": {"json": schema_of(number)},
    }
    [output] = [each async for each in llm.generate(f"Prompt {number} " * 3, params)]
    assert output.outputs[0].finish_reason == "stop"
    return output.outputs[0].text


@pytest.mark.parametrize("num_ranks", [1, pytest.param(2, marks=pytest.mark.part)])
async def test_a_grammar_is_followed_through_retractions(tmp_path: Path, num_ranks: int) -> None:
    write_demo_checkpoint(tmp_path, seed=3)
    tokenizer = load_tokenizer(tmp_path)
    config = load_config(
        {"model": {"path": str(tmp_path), "max_model_len": 256}},
        {
            "cache": {"l1": {"num_pages": 24}, "l2": None, "page_size": 16},
            "parallel": {"tp": num_ranks},
        },
    )
    async with in_process_engine(config) as engine:
        llm = InProcessLLM(engine, await engine.connect(tokenizer))
        alone = [await generate(llm, number) for number in range(NUM_REQUESTS)]

        together = await asyncio.gather(*(generate(llm, number) for number in range(NUM_REQUESTS)))

        assert together == alone
        assert (await engine.check())["scheduler"]["retracted_requests"] > 0
    for number, text in enumerate(alone):
        jsonschema.validate(json.loads(text), schema_of(number))
