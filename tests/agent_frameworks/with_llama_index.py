"""An agent of llama-index, which always streams, and its model, which need not."""

from llama_index.core.agent.workflow import AgentStream, FunctionAgent
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike

from tests.agent_frameworks.agent_server import ANSWER, MODEL, QUESTION, time_in, weather_in

TOOLS = [FunctionTool.from_defaults(each) for each in (weather_in, time_in)]


def model(url: str) -> OpenAILike:
    return OpenAILike(
        model=MODEL,
        api_base=f"{url}/v1",
        api_key="none",
        is_chat_model=True,
        is_function_calling_model=True,
        context_window=4096,
        max_retries=0,
    )


async def test_a_streamed_agent_ends_with_what_its_tools_answered(url: str) -> None:
    run = FunctionAgent(tools=TOOLS, llm=model(url)).run(QUESTION)
    pieces = [event.delta async for event in run.stream_events() if isinstance(event, AgentStream)]
    assert str(await run) == ANSWER
    assert "".join(pieces) == ANSWER


async def test_a_loop_without_streams_does_so_too(url: str) -> None:
    llm = model(url)
    turns = [ChatMessage(role="user", content=QUESTION)]
    by_name = {each.metadata.name: each for each in TOOLS}
    answer = await llm.achat_with_tools(TOOLS, chat_history=turns)
    while calls := llm.get_tool_calls_from_response(answer, error_on_no_tool_call=False):
        turns.append(answer.message)
        for call in calls:
            output = by_name[call.tool_name](**call.tool_kwargs)
            named = {"tool_call_id": call.tool_id}
            turns.append(ChatMessage(role="tool", content=str(output), additional_kwargs=named))
        answer = await llm.achat_with_tools(TOOLS, chat_history=turns)
    assert answer.message.content == ANSWER
