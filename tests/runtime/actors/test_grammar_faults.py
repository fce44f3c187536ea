"""A GPU actor that is killed while it samples by grammars costs a pause, no token."""

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import jsonschema
import pytest

pytest.importorskip("xgrammar")

from raydix.runtime.api.client import AsyncLLM
from raydix.runtime.cli.demo_checkpoint import write_demo_checkpoint
from raydix.runtime.config.loading import load_config
from tests.ray_cluster import own_name

pytestmark = [pytest.mark.ray, pytest.mark.slow]

SCHEMA: dict[str, Any] = {
    "type": "array",
    "minItems": 20,
    "maxItems": 20,
    "items": {"enum": ["red", "green", "blue", 1, 22, 333]},
}


async def generate(llm: AsyncLLM, number: int, at_token: asyncio.Event | None = None) -> str:
    """The JSON of one request; `at_token` is set once some tokens are there."""
    params = {"max_tokens": 400, "seed": number, "structured_outputs": {"json": SCHEMA}}
    text = ""
    async for output in llm.generate(f"Colours {number}", params):
        text = output.outputs[0].text
        if at_token is not None and len(output.outputs[0].token_ids) > 20:
            at_token.set()
    assert output.outputs[0].finish_reason == "stop"
    return text


@pytest.mark.part
@pytest.mark.usefixtures("ray_cluster")
async def test_a_grammar_goes_on_where_it_was_when_its_rank_is_killed(tmp_path: Path) -> None:
    write_demo_checkpoint(tmp_path, seed=3)
    config = load_config(
        {"model": {"path": str(tmp_path), "max_model_len": 512}},
        {
            "cache": {
                "l1": {"num_pages": 256},
                "page_size": 16,
                "l2": {"bytes_per_node": "16MiB", "keep_s": 0},
            }
        },
    )
    async with await AsyncLLM.start(config, name=own_name("grammars")) as llm:
        expected = [await generate(llm, number) for number in range(3)]
        pid = (await llm.stats())["gpu0"]["pid"]
        begun = asyncio.Event()
        asking = asyncio.gather(*(generate(llm, number, begun) for number in range(3)))
        await begun.wait()
        os.kill(pid, signal.SIGKILL)

        assert await asking == expected
        assert (await llm.stats())["scheduler"]["lost_ranks"] == 1
    for text in expected:
        jsonschema.validate(json.loads(text), SCHEMA)
