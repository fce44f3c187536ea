"""An agent of openai-agents, over chats and over responses."""

import openai
import pytest
from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)

from tests.agent_frameworks.agent_server import ANSWER, MODEL, QUESTION, time_in, weather_in

set_tracing_disabled(True)


@pytest.fixture(params=[OpenAIChatCompletionsModel, OpenAIResponsesModel])
def agent(request: pytest.FixtureRequest, url: str) -> Agent:
    client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    tools = [function_tool(weather_in), function_tool(time_in)]
    return Agent(name="Agent", model=request.param(MODEL, client), tools=tools)


async def test_an_agent_ends_with_what_its_tools_answered(agent: Agent) -> None:
    assert (await Runner.run(agent, QUESTION)).final_output == ANSWER


async def test_a_streamed_agent_does_so_too(agent: Agent) -> None:
    result = Runner.run_streamed(agent, QUESTION)
    deltas = [
        event.data.delta
        async for event in result.stream_events()
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta"
    ]
    assert result.final_output == "".join(deltas) == ANSWER
    assert len(deltas) > 1
