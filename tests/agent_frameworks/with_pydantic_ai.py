"""An agent of pydantic-ai, over chats and over responses."""

import pytest
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

from tests.agent_frameworks.agent_server import ANSWER, MODEL, QUESTION, time_in, weather_in


@pytest.fixture(params=[OpenAIChatModel, OpenAIResponsesModel])
def agent(request: pytest.FixtureRequest, url: str) -> Agent:
    provider = OpenAIProvider(base_url=f"{url}/v1", api_key="none")
    return Agent(request.param(MODEL, provider=provider), tools=[weather_in, time_in])


async def test_an_agent_ends_with_what_its_tools_answered(agent: Agent) -> None:
    assert (await agent.run(QUESTION)).output == ANSWER


async def test_a_streamed_agent_does_so_too(agent: Agent) -> None:
    async with agent.run_stream(QUESTION) as result:
        pieces = [piece async for piece in result.stream_text(delta=True, debounce_by=None)]
    assert "".join(pieces) == ANSWER
    assert len(pieces) > 1
