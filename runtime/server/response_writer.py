"""A response in the making: its state, and the events that tell each change. No I/O."""

from collections.abc import Iterator
from typing import Any, Literal, assert_never

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
from raydix.runtime.server.response_items import (
    MESSAGE,
    REASONING,
    CallItem,
    OpenItem,
    TextItem,
    TextKind,
    Told,
)
from raydix.runtime.server.spoken import Spoken
from raydix.runtime.server.wire.response_items import OutputItem, Status
from raydix.runtime.server.wire.responses import (
    IncompleteDetails,
    ResponseAnswer,
    ResponseEvent,
    ResponsesRequest,
)
from raydix.runtime.server.wire.usage import UsageMeter

End = Literal["in_progress", "completed", "incomplete", "failed"]


class ResponseWriter:
    """Owns: the items of one response, and the numbers of its events.

    A call that turns out to be none is an incomplete item of a stream, and not in the response.
    """

    def __init__(
        self,
        request: ResponsesRequest,
        request_id: str,
        model: str,
        created_at: int,
        spoken: Spoken | None,
    ) -> None:
        """`spoken`: what reads the answer; None: it is content and nothing else."""
        self._request = request
        self._request_id = request_id
        self._model = model
        self._created_at = created_at
        self._spoken = spoken

        self._meter = UsageMeter(num_samples=1)
        self._open: OpenItem | None = None
        self._done: list[OutputItem] = []
        self._num_items = 0
        self._status: End = "in_progress"
        self._num_events = 0

    def opening(self) -> list[ResponseEvent]:
        """The events that come before any item."""
        empty = self._response(output=[])
        kinds = ("response.created", "response.in_progress")
        return [self._event(kind, response=empty) for kind in kinds]

    def add(self, output: RequestOutput) -> list[ResponseEvent]:
        """Take in what is new; each token must be told once."""
        self._meter.add(0, output)
        new = output.outputs[0]
        events = [told for event in self._said(new) for told in self._tell(event)]
        match new.finish_reason:
            case None:
                pass
            case "length":
                self._status = "incomplete"
            case "stop":
                self._status = "completed"
            case _:
                self._status = "failed"
        return events

    def closing(self) -> Iterator[ResponseEvent]:
        """The events that come when the last output has been added."""
        if self._num_items == 0:
            yield from self._begin(self._text_item(MESSAGE))
        yield from self._close(self._last_status())
        yield self._event(f"response.{self._status}", response=self.response())

    def response(self) -> ResponseAnswer:
        """The whole response as it is now."""
        output = list(self._done)
        if self._open is not None:
            output.append(self._open.item(self._last_status()))
        elif self._num_items == 0:
            output.append(self._text_item(MESSAGE).item(self._last_status()))
        return self._response(output)

    def _said(self, new: CompletionOutput) -> list[Event]:
        if self._spoken is None:
            return [Content(new.text)] if new.text else []
        events = self._spoken.add(new)
        self._meter.tell_reasoning(0, self._spoken.num_reasoning_tokens)
        return events

    def _tell(self, event: Event) -> Iterator[ResponseEvent]:
        match event:
            case Reasoning():
                yield from self._tell_text(REASONING, event.text)
            case Content():
                yield from self._tell_text(MESSAGE, event.text)
            case CallBegun():
                assert event.call_id is not None, "Spoken has drawn one"
                yield from self._begin(CallItem(self._item_id("fc"), event.call_id, event.name))
            case Arguments():
                assert self._open is not None, "a call has begun"
                yield self._item_event(self._open.piece(event.text))
            case CallEnded():
                yield from self._close("completed")
            case CallBroken():
                yield from self._close("incomplete")
                self._done.pop()
                yield from self._tell_text(MESSAGE, event.text)
            case _:
                assert_never(event)

    def _tell_text(self, kind: TextKind, text: str) -> Iterator[ResponseEvent]:
        """Tell text as that of the open item, if it is of this kind, or else of a new one."""
        if not (isinstance(self._open, TextItem) and self._open.kind is kind):
            yield from self._begin(self._text_item(kind))
        assert self._open is not None, "it has begun"
        yield self._item_event(self._open.piece(text))

    def _text_item(self, kind: TextKind) -> TextItem:
        return TextItem(kind, self._item_id("msg" if kind is MESSAGE else "rs"))

    def _item_id(self, kind: str) -> str:
        return f"{kind}_{self._request_id}_{self._num_items}"

    def _begin(self, item: OpenItem) -> Iterator[ResponseEvent]:
        yield from self._close("completed")
        self._open = item
        self._num_items += 1
        yield from map(self._item_event, item.opening())

    def _close(self, status: Status) -> Iterator[ResponseEvent]:
        if self._open is not None:
            yield from map(self._item_event, self._open.closing(status))
            self._done.append(self._open.item(status))
            self._open = None

    def _last_status(self) -> Status:
        """The status of the item with which the response ends."""
        return "completed" if self._status == "completed" else "incomplete"

    def _item_event(self, told: Told) -> ResponseEvent:
        return self._event(told.type, output_index=self._num_items - 1, **told.fields)

    def _response(self, output: list[OutputItem]) -> ResponseAnswer:
        request = self._request
        has_ended = self._status != "in_progress"
        effort = None if request.reasoning is None else request.reasoning.effort
        return ResponseAnswer(
            id=f"resp_{self._request_id}",
            created_at=self._created_at,
            status=self._status,
            incomplete_details=IncompleteDetails() if self._status == "incomplete" else None,
            instructions=request.instructions,
            max_output_tokens=request.max_output_tokens,
            metadata=request.metadata or {},
            model=self._model,
            output=output,
            parallel_tool_calls=request.parallel_tool_calls,
            reasoning={"effort": effort, "summary": None},
            temperature=request.temperature,
            text=_text_of(request),
            tool_choice=request.tool_choice or "auto",
            tools=[each.model_dump() for each in request.tools or ()],
            top_p=request.top_p,
            usage=self._meter.response_usage() if has_ended else None,
        )

    def _event(self, kind: str, **fields: object) -> ResponseEvent:
        event = ResponseEvent(type=kind, sequence_number=self._num_events, **fields)
        self._num_events += 1
        return event


def _text_of(request: ResponsesRequest) -> dict[str, Any]:
    """The form of the text, as it was asked for."""
    asked = None if request.text is None else request.text.format
    if asked is None:
        return {"format": {"type": "text"}}
    return {"format": asked.model_dump(by_alias=True, exclude_unset=True)}
