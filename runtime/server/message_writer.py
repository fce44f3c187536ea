"""A message of Anthropic's interface in the making, and the events of each change. No I/O."""

from collections.abc import Iterator
from typing import Any, assert_never

from pydantic_core import from_json

from raydix.runtime.api.outputs import CompletionOutput, RequestOutput
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
from raydix.runtime.server.wire.anthropic_answers import (
    AnswerBlock,
    AnswerText,
    AnswerThinking,
    AnswerToolUse,
    Delta,
    MessageAnswer,
    MessageEnd,
    MessageEvent,
    StopReason,
    anthropic_usage,
)
from raydix.runtime.server.wire.usage import UsageMeter


class MessageWriter:
    """Owns: the blocks of one message.

    A call that turns out to be none is a block of a stream all the same, and not of the message.
    """

    def __init__(self, request_id: str, model: str, spoken: Spoken | None) -> None:
        """`spoken`: what reads the answer; None: it is content and nothing else."""
        self._id = f"msg_{request_id}"
        self._model = model
        self._spoken = spoken
        self._meter = UsageMeter(num_samples=1)
        self._has_begun = False
        self._open: AnswerBlock | None = None
        """The block as it began; what was said in it since is in the pieces."""
        self._pieces: list[str] = []
        self._done: list[AnswerBlock] = []
        self._num_blocks = 0
        self._end: MessageEnd | None = None

    def add(self, output: RequestOutput) -> list[MessageEvent]:
        """Take in what is new; each token must be told once."""
        self._meter.add(0, output)
        new = output.outputs[0]
        events = list(self._begin_message())
        for each in self._said(new):
            events += self._tell(each)
        if new.is_finished:
            events += self._close()
            self._end = self._end_of(new)
        return events

    def closing(self) -> Iterator[MessageEvent]:
        """The events that come when the last output has been added."""
        usage = anthropic_usage(self._meter.usage())
        yield MessageEvent(type="message_delta", delta=self._end, usage=usage)
        yield MessageEvent(type="message_stop")

    def message(self) -> MessageAnswer:
        """All of it, once the last output has been added."""
        assert self._end is not None, "it has ended"
        return MessageAnswer(
            id=self._id,
            model=self._model,
            content=self._done,
            stop_reason=self._end.stop_reason,
            stop_sequence=self._end.stop_sequence,
            usage=anthropic_usage(self._meter.usage()),
        )

    def _begin_message(self) -> Iterator[MessageEvent]:
        if self._has_begun:
            return
        self._has_begun = True
        usage = anthropic_usage(self._meter.usage())
        empty = MessageAnswer(id=self._id, model=self._model, content=[], usage=usage)
        yield MessageEvent(type="message_start", message=empty)

    def _said(self, new: CompletionOutput) -> list[Event]:
        if self._spoken is None:
            return [Content(new.text)] if new.text else []
        events = self._spoken.add(new)
        self._meter.tell_reasoning(0, self._spoken.num_reasoning_tokens)
        return events

    def _end_of(self, new: CompletionOutput) -> MessageEnd:
        reason: StopReason = "end_turn"
        if self._spoken is not None and self._spoken.finish_reason(new) == "tool_calls":
            reason = "tool_use"
        elif new.finish_reason == "length":
            reason = "max_tokens"
        elif isinstance(new.stop_reason, str):
            return MessageEnd(stop_reason="stop_sequence", stop_sequence=new.stop_reason)
        return MessageEnd(stop_reason=reason)

    def _tell(self, event: Event) -> Iterator[MessageEvent]:
        match event:
            case Reasoning():
                if not isinstance(self._open, AnswerThinking):
                    yield from self._begin(AnswerThinking(thinking=""))
                yield self._piece(event.text, Delta(type="thinking_delta", thinking=event.text))
            case Content():
                yield from self._tell_text(event.text)
            case CallBegun():
                assert event.call_id is not None, "Spoken has drawn one"
                yield from self._begin(AnswerToolUse(id=event.call_id, name=event.name, input={}))
            case Arguments():
                delta = Delta(type="input_json_delta", partial_json=event.text)
                yield self._piece(event.text, delta)
            case CallEnded():
                yield from self._close()
            case CallBroken():
                yield from self._close()
                self._done.pop()
                yield from self._tell_text(event.text)
            case _:
                assert_never(event)

    def _tell_text(self, text: str) -> Iterator[MessageEvent]:
        if not isinstance(self._open, AnswerText):
            yield from self._begin(AnswerText(text=""))
        yield self._piece(text, Delta(type="text_delta", text=text))

    def _begin(self, block: AnswerBlock) -> Iterator[MessageEvent]:
        yield from self._close()
        self._open, self._pieces = block, []
        self._num_blocks += 1
        yield self._block_event("content_block_start", content_block=block)

    def _piece(self, text: str, delta: Delta) -> MessageEvent:
        self._pieces.append(text)
        return self._block_event("content_block_delta", delta=delta)

    def _close(self) -> Iterator[MessageEvent]:
        if self._open is None:
            return
        if isinstance(self._open, AnswerThinking):
            delta = Delta(type="signature_delta", signature="")
            yield self._block_event("content_block_delta", delta=delta)
        yield self._block_event("content_block_stop")
        self._done.append(_whole(self._open, "".join(self._pieces)))
        self._open = None

    def _block_event(self, kind: str, **fields: Any) -> MessageEvent:
        return MessageEvent(type=kind, index=self._num_blocks - 1, **fields)


def _whole(block: AnswerBlock, text: str) -> AnswerBlock:
    """The block with all that was said in it."""
    match block:
        case AnswerText():
            return AnswerText(text=text)
        case AnswerThinking():
            return AnswerThinking(thinking=text)
        case AnswerToolUse():
            try:
                # A call that was cut has what is whole of its arguments, as a stream's has.
                written = from_json(text or "{}", allow_partial=True)
            except ValueError:
                # Half of a surrogate pair, or a number of thousands of digits: no client reads it.
                return AnswerText(text=text)
            return AnswerToolUse(id=block.id, name=block.name, input=written)
        case _:
            assert_never(block)
