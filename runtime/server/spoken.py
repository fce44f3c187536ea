"""What one choice says: reasoning, content, and calls of tools."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from raydix.runtime.api.outputs import CompletionOutput
from raydix.runtime.api.tool_formats.answer_format import AnswerFormat
from raydix.runtime.api.tool_formats.answer_parser import AnswerParser
from raydix.runtime.api.tool_formats.events import (
    Arguments,
    CallBegun,
    CallBroken,
    CallEnded,
    Content,
    Event,
    Reasoning,
)
from raydix.runtime.api.tool_formats.tool_format import random_call_id

TokenBytes = Callable[[int], bytes]
"""The bytes of a token."""


class Spoken:
    """Owns: what one choice has said so far.

    A call that turns out to be none is content; what a stream was told of it by then stays told.
    One that is cut by the limit of tokens is told as far as it goes.
    """

    def __init__(
        self,
        answer_format: AnswerFormat,
        token_bytes: TokenBytes,
        *,
        max_calls: int | None,
        tells_reasoning: bool,
        tells_content: bool,
    ) -> None:
        """`max_calls`: the calls beyond are left out; None: all are told.

        `tells_content`: whether an answer may have content; False if it is calls and nothing else.
        """
        self._parser = AnswerParser(answer_format)
        calls = answer_format.calls
        self._new_call_id = random_call_id if calls is None else calls.new_call_id
        self._reasoning_tokens = ReasoningTokens(token_bytes)
        self._max_calls = max_calls
        self._tells_reasoning = tells_reasoning
        self._tells_content = tells_content
        self._num_calls = 0
        self._leaves_out = False
        """Whether the latest call is one too many."""

    @property
    def num_reasoning_tokens(self) -> int:
        """The tokens so far behind the mark that begins reasoning, up to the one that ends it."""
        return self._reasoning_tokens.number

    def add(self, new: CompletionOutput) -> list[Event]:
        """Take the next output; returns what is new, each call with its id."""
        events = self._parser.push(new.text)
        self._reasoning_tokens.add(new.text, new.token_ids, self._parser.edges)
        if new.is_finished:
            last = self._parser.finish()
            events += self._cut(last) if new.finish_reason == "length" else last
        told = [self._told(each) for each in events]
        return [each for each in told if each is not None]

    def finish_reason(self, new: CompletionOutput) -> str | None:
        """The reason why the choice ended; None while it goes on."""
        is_for_calls = self._num_calls > 0 and new.finish_reason == "stop"
        return "tool_calls" if is_for_calls else new.finish_reason

    def _cut(self, last: list[Event]) -> Iterator[Event]:
        """What is told at the end of a choice that was cut there.

        Behind the beginning of a call are pieces of its end; where all that comes are calls, other
        text is a piece of one.
        """
        for event in last:
            if isinstance(event, CallBroken):
                return
            if self._tells_content or not isinstance(event, Content):
                yield event

    def _told(self, event: Event) -> Event | None:
        match event:
            case Reasoning() if not self._tells_reasoning:
                return None
            case CallBegun():
                self._leaves_out = (
                    self._max_calls is not None and self._num_calls >= self._max_calls
                )
                if self._leaves_out:
                    return None
                self._num_calls += 1
                return replace(event, call_id=event.call_id or self._new_call_id())
            case Arguments() | CallEnded() if self._leaves_out:
                return None
            case CallBroken() if self._leaves_out:
                return Content(event.text)
            case CallBroken():
                self._num_calls -= 1
        return event


class ReasoningTokens:
    """Owns: how many tokens were reasoning, and whether the next one is.

    An output's text begins with that of earlier tokens where it was held back: within a character,
    and where it may have become a stop string.
    """

    def __init__(self, token_bytes: TokenBytes) -> None:
        self.number = 0
        self._token_bytes = token_bytes
        self._is_reasoning = False
        self._num_held = 0
        """The bytes of the tokens so far whose text has not come."""

    def add(self, text: str, token_ids: Sequence[int], edges: Sequence[int]) -> None:
        """Count an output's tokens.

        edges: where reasoning begins and ends in its text, in turn. A token is what it begins in.
        """
        places = [len(text[:each].encode()) for each in edges]
        num_passed = 0
        begin = self._num_held
        for token_id in token_ids:
            while num_passed < len(places) and places[num_passed] <= begin:
                num_passed += 1
                self._is_reasoning = not self._is_reasoning
            self.number += self._is_reasoning
            begin += len(self._token_bytes(token_id))
        if (len(places) - num_passed) % 2:
            self._is_reasoning = not self._is_reasoning
        self._num_held = max(0, begin - len(text.encode()))
