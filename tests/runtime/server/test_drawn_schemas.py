"""Each of 1,000 schemas that are drawn is refused by name, or what random weights answer is valid.

A tenth of them is a part. OpenAI's client asks, all of a part at once.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jsonschema
import openai
import pytest
import pytest_asyncio

pytest.importorskip("xgrammar")

from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.drawn_schemas import SCHEMAS
from tests.parts import NUM_PARTS
from tests.runtime.server.served_engine import MODEL, Server, serving, write_checkpoint

pytestmark = pytest.mark.asyncio(loop_scope="module")
NUM_SCHEMAS = 1000
MAX_TOKENS = 300
NUM_SEEDS = 3
"""How often it is asked for an answer that has not ended; random weights may go on for ever."""
REFUSALS = ("cannot be enforced: ", "cannot be compiled: ", "has a grammar ")
ENDINGS = b'"}]'
BIAS = 5.0
"""Random weights write what ends texts no more often than anything else."""


def drawn(part: int) -> list[dict[str, Any]]:
    """The schemas of a part: always the same ones."""
    schemas: list[dict[str, Any]] = []

    @seed(part)
    @settings(
        max_examples=NUM_SCHEMAS // NUM_PARTS,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=[*HealthCheck],
    )
    @given(SCHEMAS)
    def draw(schema: dict[str, Any]) -> None:
        schemas.append(schema)

    draw()
    return schemas


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Server]:
    """One for all, as its compilers take seconds to start."""
    folder: Path = write_checkpoint(tmp_path_factory.mktemp("drawn"))
    model = {"max_model_len": 1024}
    async with serving(folder, model=model, cache={"l1": {"num_pages": 8192}}) as server:
        yield server
        await server.engine.check()


def refused(error: openai.BadRequestError) -> str:
    """What becomes of a schema that is refused by name."""
    assert error.param == "response_format", error
    assert any(each in error.message for each in REFUSALS), error
    return "refused"


async def outcome(
    server: Server, client: openai.AsyncOpenAI, schema: dict[str, Any], bias: dict[str, float]
) -> str:
    """What becomes of a schema: `valid`, `refused`, or `unended`."""
    told: Any = {"type": "json_schema", "json_schema": {"name": "drawn", "schema": schema}}
    for number in range(NUM_SEEDS):
        try:
            answer = await client.chat.completions.create(
                model=MODEL,
                messages=[{"role": "user", "content": "Any JSON."}],
                max_tokens=MAX_TOKENS,
                seed=number,
                response_format=told,
                extra_body={"logit_bias": bias},
            )
        except openai.BadRequestError as error:
            return refused(error)
        [choice] = answer.choices
        if choice.finish_reason == "length":
            continue
        assert choice.finish_reason == "stop"
        try:
            jsonschema.Draft202012Validator(schema).validate(
                json.loads(choice.message.content or "")
            )
        except RecursionError:
            # It refers to itself before any part of a value, so that no value is decided.
            return "undecided"
        return "valid"
    return "unended"


@pytest.mark.part
@pytest.mark.parametrize("part", range(NUM_PARTS))
async def test_answers_are_valid_or_the_schema_is_refused_by_name(
    server: Server, part: int
) -> None:
    ends = [ids[0] for end in ENDINGS for ids in [await server.llm.encode(chr(end))]]
    bias = {str(each): BIAS for each in [*ends, *server.engine.facts.client.eos_token_ids]}
    # However busy the machine is.
    client = server.client().with_options(timeout=3600)

    outcomes = await asyncio.gather(
        *(outcome(server, client, schema, bias) for schema in drawn(part))
    )

    await client.close()
    counts = Counter(outcomes)
    assert counts["valid"] > len(outcomes) / 10, counts
    assert counts["unended"] <= len(outcomes) / 20, counts
    print(f"of {len(outcomes)} schemas {dict(counts)}")
