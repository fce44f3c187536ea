"""A server whose model is an agent: it calls two tools in turn, and then tells their answers."""

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tests.runtime.server.scripted_server import (
    THINKING_TEMPLATE,
    ScriptedModel,
    scripted_serving,
)
from tests.runtime.server.served_engine import MODEL, write_checkpoint

__all__ = ["ANSWER", "MODEL", "QUESTION", "agent_serving", "time_in", "weather_in"]
QUESTION = "How is the weather in Bonn, and how late is it there?"
ANSWER = "They say: 21 degrees in Bonn; 12:34 in Bonn"
_CALLS = ("weather_in", "time_in")


def weather_in(city: str) -> str:
    """Tell the weather.

    Args:
        city: The name of a city.
    """
    return f"21 degrees in {city}"


def time_in(city: str) -> str:
    """Tell the time of day.

    Args:
        city: The name of a city.
    """
    return f"12:34 in {city}"


class Agent:
    """ASGI middleware: tells the model what to say, by the results that a request brings."""

    def __init__(self, app: ASGIApp, script: ScriptedModel) -> None:
        self._app = app
        self._script = script

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, as ASGI asks of an application."""
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        body, more = b"", True
        while more:
            part = await receive()
            body += part["body"]
            more = part.get("more_body", False)
        self._script.say(_said(results_of(json.loads(body))))
        parts: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def read() -> Message:
            return parts.pop() if parts else await receive()

        await self._app(scope, read, send)


def _said(results: list[str]) -> str:
    """A thought and the next call; in the end what all calls have brought."""
    if len(results) == len(_CALLS):
        return f"<think>\nNow I know.\n</think>\n\nThey say: {'; '.join(results)}"
    call = json.dumps({"name": _CALLS[len(results)], "arguments": {"city": "Bonn"}})
    return f"<think>\nI ask.\n</think>\n\n<tool_call>\n{call}\n</tool_call>"


def results_of(request: dict[str, Any]) -> list[str]:
    """What tools have answered, in a request of any of the three interfaces."""
    if "messages" not in request:
        items = request["input"] if isinstance(request["input"], list) else []
        outputs = [item for item in items if item.get("type") == "function_call_output"]
        return [_text(item["output"]) for item in outputs]

    results = []
    for message in request["messages"]:
        if message["role"] == "tool":
            results.append(_text(message["content"]))
        elif isinstance(message.get("content"), list):
            blocks = [each for each in message["content"] if each.get("type") == "tool_result"]
            results += [_text(each["content"]) for each in blocks]
    return results


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(part["text"] for part in content)


@contextlib.asynccontextmanager
async def agent_serving(folder: Path) -> AsyncIterator[str]:
    """The URL of such a server, without a path. `folder`: an empty one, for its checkpoint."""
    checkpoint = write_checkpoint(folder)
    async with scripted_serving(checkpoint, THINKING_TEMPLATE, around=Agent) as (server, _):
        yield server.url
