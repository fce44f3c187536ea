"""What a choice says as the message of a chat, and as the deltas of its stream."""

from typing import assert_never

from raydix.runtime.api.outputs import CompletionOutput
from raydix.runtime.api.tool_formats.events import (
    Arguments,
    CallBegun,
    CallBroken,
    CallEnded,
    Content,
    Event,
    Reasoning,
)
from raydix.runtime.server.spoken import Spoken
from raydix.runtime.server.wire.chat import AnswerMessage, Delta
from raydix.runtime.server.wire.tools import FunctionCall, FunctionDelta, ToolCall, ToolCallDelta


class ChatMessage:
    """Owns: the message of one choice, as far as it goes."""

    def __init__(self, spoken: Spoken) -> None:
        self.spoken = spoken
        self._reasoning: list[str] = []
        self._content: list[str] = []
        self._calls: list[ToolCall] = []
        self._arguments: list[str] = []
        """The pieces of the latest call's."""
        self._num_begun = 0
        """The calls that a stream was told of, whether or not they are any."""

    def add(self, new: CompletionOutput) -> list[Delta]:
        """Take the next output; returns what is new."""
        deltas = [self._delta(each) for each in self.spoken.add(new)]
        return [each for each in deltas if each is not None]

    def message(self) -> AnswerMessage:
        """All that was said."""
        self._close_call()
        content, reasoning = "".join(self._content), "".join(self._reasoning) or None
        return AnswerMessage(
            content=content if content or not self._calls else None,
            reasoning_content=reasoning,
            reasoning=reasoning,
            tool_calls=self._calls or None,
        )

    def _delta(self, event: Event) -> Delta | None:
        match event:
            case Reasoning():
                self._reasoning.append(event.text)
                return Delta(reasoning_content=event.text, reasoning=event.text)
            case Content():
                return self._say(event.text)
            case CallBegun():
                return self._begin_call(event)
            case Arguments():
                return self._argue(event.text)
            case CallEnded():
                return None
            case CallBroken():
                self._arguments = []
                self._calls.pop()
                return self._say(event.text)
            case _:
                assert_never(event)

    def _say(self, text: str) -> Delta:
        self._content.append(text)
        return Delta(content=text)

    def _begin_call(self, call: CallBegun) -> Delta:
        self._close_call()
        assert call.call_id is not None, "Spoken has drawn one"
        function = FunctionCall(name=call.name, arguments="")
        self._calls.append(ToolCall(id=call.call_id, function=function))
        index = self._num_begun
        self._num_begun += 1
        begun = FunctionDelta(name=call.name, arguments="")
        told = ToolCallDelta(index=index, id=call.call_id, type="function", function=begun)
        return Delta(tool_calls=[told])

    def _argue(self, text: str) -> Delta:
        self._arguments.append(text)
        function = FunctionDelta(arguments=text)
        return Delta(tool_calls=[ToolCallDelta(index=self._num_begun - 1, function=function)])

    def _close_call(self) -> None:
        """Put the latest call's arguments where they belong."""
        if not self._arguments:
            return
        call = self._calls.pop()
        function = FunctionCall(name=call.function.name, arguments="".join(self._arguments))
        self._calls.append(ToolCall(id=call.id, function=function))
        self._arguments = []
