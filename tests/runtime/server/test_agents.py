"""Agents by the loop of Anthropic's own client: they end with what their tools answered."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import pytest

from tests.agent_frameworks.agent_server import (
    ANSWER,
    MODEL,
    QUESTION,
    agent_serving,
    time_in,
    weather_in,
)


@pytest.fixture
async def url(tmp_path: Path) -> AsyncIterator[str]:
    async with agent_serving(tmp_path) as url:
        yield url


@anthropic.beta_async_tool(name="weather_in")
async def weather(city: str) -> str:
    """Tell the weather.

    Args:
        city: The name of a city.
    """
    return weather_in(city)


@anthropic.beta_async_tool(name="time_in")
async def time(city: str) -> str:
    """Tell the time of day.

    Args:
        city: The name of a city.
    """
    return time_in(city)


@pytest.mark.parametrize("stream", [False, True])
async def test_an_agent_ends_with_what_its_tools_answered(url: str, stream: bool) -> None:
    http = httpx2.AsyncClient(verify=False, timeout=60)
    client = anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0, http_client=http)
    runner: Any = client.beta.messages.tool_runner(
        model=MODEL,
        max_tokens=400,
        tools=[weather, time],
        messages=[{"role": "user", "content": QUESTION}],
        stream=stream,
    )
    messages = [await each.get_final_message() if stream else each async for each in runner]
    assert [each.stop_reason for each in messages] == ["tool_use", "tool_use", "end_turn"]
    assert messages[-1].content[-1].text == ANSWER
    assert messages[-1].content[0].thinking == "Now I know."
