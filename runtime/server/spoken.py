"""What one choice of a chat says: content, and calls of tools."""

from typing import assert_never

from raydix.runtime.api.outputs import CompletionOutput
from raydix.runtime.api.tool_formats.events import (
    Arguments,
    CallBegun,
    CallBroken,
    CallEnded,
    Content,
    Event,
)
from raydix.runtime.api.tool_formats.tool_format import ToolFormat, Tools
from raydix.runtime.api.tool_formats.tool_parser import ToolParser
from raydix.runtime.server.wire.chat import AnswerMessage, Delta
from raydix.runtime.server.wire.tools import FunctionCall, FunctionDelta, ToolCall, ToolCallDelta


class Spoken:
    """Owns: what one choice has said so far.

    A call that turns out to be none is content; what a stream was told of it by then stays told.
    One that is cut by the limit of tokens is told as far as it goes.
    """

    def __init__(self, tool_format: ToolFormat, tools: Tools, max_calls: int | None) -> None:
        """`max_calls`: the calls beyond are left out; None: all are told."""
        self._parser = ToolParser(tool_format, tools)
        self._new_call_id = tool_format.new_call_id
        self._max_calls = max_calls
        self._content: list[str] = []
        self._calls: list[ToolCall] = []
        self._arguments: list[str] = []
        """The pieces of the latest call's."""
        self._num_begun = 0
        """The calls that a stream was told of, whether or not they are any."""
        self._leaves_out = False
        """Whether the latest call is one too many."""

    def add(self, new: CompletionOutput) -> list[Delta]:
        """Take the next output; returns what is new."""
        events = self._parser.push(new.text)
        if new.is_finished:
            last = self._parser.finish()
            is_cut = new.finish_reason == "length"
            events += [each for each in last if not (is_cut and isinstance(each, CallBroken))]
        deltas = [self._delta(each) for each in events]
        return [each for each in deltas if each is not None]

    def finish_reason(self, new: CompletionOutput) -> str | None:
        """The reason why the choice ended; None while it goes on."""
        return "tool_calls" if self._calls and new.finish_reason == "stop" else new.finish_reason

    def message(self) -> AnswerMessage:
        """All that was said."""
        self._close_call()
        content = "".join(self._content)
        if not self._calls:
            return AnswerMessage(content=content)
        return AnswerMessage(content=content or None, tool_calls=self._calls)

    def _delta(self, event: Event) -> Delta | None:
        match event:
            case Content():
                return self._say(event.text)
            case CallBegun():
                return self._begin_call(event)
            case Arguments():
                return None if self._leaves_out else self._argue(event.text)
            case CallEnded():
                return None
            case CallBroken():
                if not self._leaves_out:
                    self._arguments = []
                    self._calls.pop()
                return self._say(event.text)
            case _:
                assert_never(event)

    def _say(self, text: str) -> Delta:
        self._content.append(text)
        return Delta(content=text)

    def _begin_call(self, call: CallBegun) -> Delta | None:
        self._close_call()
        self._leaves_out = self._max_calls is not None and len(self._calls) >= self._max_calls
        if self._leaves_out:
            return None
        call_id = call.call_id or self._new_call_id()
        function = FunctionCall(name=call.name, arguments="")
        self._calls.append(ToolCall(id=call_id, function=function))
        index = self._num_begun
        self._num_begun += 1
        begun = FunctionDelta(name=call.name, arguments="")
        told = ToolCallDelta(index=index, id=call_id, type="function", function=begun)
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
