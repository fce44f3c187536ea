"""Calls of two tools as models of pydantic, by instructor."""

from collections.abc import Iterable
from typing import Any

import instructor
import openai
from pydantic import BaseModel

from tests.agent_frameworks.agent_server import ANSWER, MODEL, QUESTION
from tests.agent_frameworks.agent_server import time_in as tell_time
from tests.agent_frameworks.agent_server import weather_in as tell_weather


class weather_in(BaseModel):
    """Tell the weather."""

    city: str


class time_in(BaseModel):
    """Tell the time of day."""

    city: str


async def test_calls_come_as_models_and_lead_to_the_answer(url: str) -> None:
    client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    caller = instructor.from_openai(client, mode=instructor.Mode.PARALLEL_TOOLS)
    turns: list[Any] = [{"role": "user", "content": QUESTION}]
    for kind, tell in ((weather_in, tell_weather), (time_in, tell_time)):
        calls: Any = await caller.chat.completions.create(
            model=MODEL, messages=turns, response_model=Iterable[weather_in | time_in]
        )
        [call] = calls
        assert call == kind(city="Bonn")
        named = {"name": kind.__name__, "arguments": call.model_dump_json()}
        said = [{"id": kind.__name__, "type": "function", "function": named}]
        result = {"role": "tool", "tool_call_id": kind.__name__, "content": tell(call.city)}
        turns += [{"role": "assistant", "content": None, "tool_calls": said}, result]

    answer = await client.chat.completions.create(model=MODEL, messages=turns)
    assert answer.choices[0].message.content == ANSWER


async def test_a_call_that_must_come_is_a_model_whole_and_streamed(url: str) -> None:
    client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    caller = instructor.from_openai(client, mode=instructor.Mode.TOOLS)
    asked: Any = {
        "model": MODEL,
        "messages": [{"role": "user", "content": QUESTION}],
        "response_model": weather_in,
        "max_retries": 0,
    }
    call: Any = await caller.chat.completions.create(**asked)
    assert call.city == "Bonn"
    parts = [part async for part in caller.chat.completions.create_partial(**asked)]
    assert parts[-1].city == "Bonn"
    assert len(parts) > 1
