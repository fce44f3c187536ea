"""An agent of langchain-openai and langgraph, over chats and over responses."""

from typing import Any

import pytest
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.prebuilt import create_react_agent

from tests.agent_frameworks.agent_server import ANSWER, MODEL, QUESTION, time_in, weather_in

ASKED = {"messages": [("user", QUESTION)]}


@pytest.fixture(params=[False, True], ids=["chats", "responses"])
def agent(request: pytest.FixtureRequest, url: str) -> Any:
    model = ChatOpenAI(
        model=MODEL,
        base_url=f"{url}/v1",
        api_key="none",
        use_responses_api=request.param,
        max_retries=0,
    )
    return create_react_agent(model, [tool(weather_in), tool(time_in)])


async def test_an_agent_ends_with_what_its_tools_answered(agent: Any) -> None:
    state = await agent.ainvoke(ASKED)
    assert state["messages"][-1].text == ANSWER
    assert [each.name for each in state["messages"] if each.type == "tool"] == [
        "weather_in",
        "time_in",
    ]


async def test_a_streamed_agent_does_so_too(agent: Any) -> None:
    pieces = [
        piece.text
        async for piece, where in agent.astream(ASKED, stream_mode="messages")
        if where["langgraph_node"] == "agent" and piece.text
    ]
    assert "".join(pieces) == ANSWER
    assert len(pieces) > 1
