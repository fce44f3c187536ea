"""A response in the making: its state, and the events that tell each change. No I/O."""

from collections.abc import Iterator
from typing import Literal

from raydix.runtime.api.outputs import RequestOutput
from raydix.runtime.server.wire.responses import (
    IncompleteDetails,
    OutputMessage,
    OutputText,
    ResponseAnswer,
    ResponseEvent,
    ResponsesRequest,
)
from raydix.runtime.server.wire.usage import UsageMeter

Status = Literal["in_progress", "completed", "incomplete", "failed"]


class ResponseWriter:
    """Owns: the text of one response, and the numbers of its events."""

    def __init__(
        self, request: ResponsesRequest, request_id: str, model: str, created_at: int
    ) -> None:
        self._request = request
        self._id = f"resp_{request_id}"
        self._message_id = f"msg_{request_id}"
        self._model = model
        self._created_at = created_at

        self._meter = UsageMeter(num_samples=1)
        self._text = ""
        self._status: Status = "in_progress"
        self._num_events = 0

    def opening(self) -> list[ResponseEvent]:
        """The events that come before any text."""
        empty = self._response(output=[])
        return [
            self._event("response.created", response=empty),
            self._event("response.in_progress", response=empty),
            self._event(
                "response.output_item.added",
                output_index=0,
                item=OutputMessage(id=self._message_id, status="in_progress", content=[]),
            ),
            self._part_event("response.content_part.added", part=OutputText(text="")),
        ]

    def add(self, output: RequestOutput) -> list[ResponseEvent]:
        """Take in what is new; each token must be told once."""
        self._meter.add(0, output)
        new = output.outputs[0]
        self._text += new.text
        match new.finish_reason:
            case None:
                pass
            case "length":
                self._status = "incomplete"
            case "stop":
                self._status = "completed"
            case _:
                self._status = "failed"
        if not new.text:
            return []
        return [self._part_event("response.output_text.delta", delta=new.text, logprobs=[])]

    def closing(self) -> Iterator[ResponseEvent]:
        """The events that come when the last output has been added."""
        yield self._part_event("response.output_text.done", text=self._text, logprobs=[])
        yield self._part_event("response.content_part.done", part=OutputText(text=self._text))
        yield self._event("response.output_item.done", output_index=0, item=self._message())
        yield self._event(f"response.{self._status}", response=self.response())

    def response(self) -> ResponseAnswer:
        """The whole response as it is now."""
        return self._response(output=[self._message()])

    def _message(self) -> OutputMessage:
        status = "completed" if self._status == "completed" else "incomplete"
        return OutputMessage(
            id=self._message_id, status=status, content=[OutputText(text=self._text)]
        )

    def _response(self, output: list[OutputMessage]) -> ResponseAnswer:
        request = self._request
        has_ended = self._status != "in_progress"
        return ResponseAnswer(
            id=self._id,
            created_at=self._created_at,
            status=self._status,
            incomplete_details=IncompleteDetails() if self._status == "incomplete" else None,
            instructions=request.instructions,
            max_output_tokens=request.max_output_tokens,
            metadata=request.metadata or {},
            model=self._model,
            output=output,
            temperature=request.temperature,
            top_p=request.top_p,
            usage=self._meter.response_usage() if has_ended else None,
        )

    def _part_event(self, kind: str, **fields: object) -> ResponseEvent:
        return self._event(
            kind, item_id=self._message_id, output_index=0, content_index=0, **fields
        )

    def _event(self, kind: str, **fields: object) -> ResponseEvent:
        event = ResponseEvent(type=kind, sequence_number=self._num_events, **fields)
        self._num_events += 1
        return event
