"""Items of a response in the making, and the events that tell of each."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from raydix.runtime.server.wire.response_items import (
    OutputCall,
    OutputItem,
    OutputMessage,
    OutputPart,
    OutputReasoning,
    OutputText,
    ReasoningText,
    Status,
)


class Told(NamedTuple):
    """An event: its type, and the fields of its own."""

    type: str
    fields: dict[str, Any]


class OpenItem(Protocol):
    """An item that has begun; what is said goes to its end."""

    def opening(self) -> Iterator[Told]:
        """The events with which it begins."""
        ...

    def piece(self, text: str) -> Told:
        """Take what is new; returns its event."""
        ...

    def closing(self, status: Status) -> Iterator[Told]:
        """The events with which it ends."""
        ...

    def item(self, status: Status) -> OutputItem:
        """All of it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TextKind:
    """How an item of one part, which is text, is told."""

    events: str
    """The events of its text begin so."""
    details: Mapping[str, Any]
    """The fields that these have besides."""
    part: Callable[[str], OutputPart]
    item: Callable[[str, Status, list[Any]], OutputItem]


MESSAGE = TextKind(
    events="response.output_text",
    details={"logprobs": []},
    part=lambda text: OutputText(text=text),
    item=lambda name, status, parts: OutputMessage(id=name, status=status, content=parts),
)
REASONING = TextKind(
    events="response.reasoning_text",
    details={},
    part=lambda text: ReasoningText(text=text),
    item=lambda name, status, parts: OutputReasoning(id=name, status=status, content=parts),
)


class TextItem:
    """Owns: what was said, or reasoned, in one go."""

    def __init__(self, kind: TextKind, item_id: str) -> None:
        self.kind = kind
        self._id = item_id
        self._pieces: list[str] = []

    def opening(self) -> Iterator[Told]:
        """Tell that it begins, as `OpenItem.opening` says."""
        empty = self.kind.item(self._id, "in_progress", [])
        yield Told("response.output_item.added", {"item": empty})
        yield self._of_part("response.content_part.added", part=self.kind.part(""))

    def piece(self, text: str) -> Told:
        """Tell what is new, as `OpenItem.piece` says."""
        self._pieces.append(text)
        return self._of_part(f"{self.kind.events}.delta", delta=text, **self.kind.details)

    def closing(self, status: Status) -> Iterator[Told]:
        """Tell that it ends, as `OpenItem.closing` says."""
        text = "".join(self._pieces)
        yield self._of_part(f"{self.kind.events}.done", text=text, **self.kind.details)
        yield self._of_part("response.content_part.done", part=self.kind.part(text))
        yield Told("response.output_item.done", {"item": self.item(status)})

    def item(self, status: Status) -> OutputItem:
        """All of it, as `OpenItem.item` says."""
        return self.kind.item(self._id, status, [self.kind.part("".join(self._pieces))])

    def _of_part(self, event: str, **fields: Any) -> Told:
        return Told(event, {"item_id": self._id, "content_index": 0, **fields})


class CallItem:
    """Owns: one call of a function."""

    def __init__(self, item_id: str, call_id: str, name: str) -> None:
        self._id = item_id
        self._call_id = call_id
        self._name = name
        self._pieces: list[str] = []

    def opening(self) -> Iterator[Told]:
        """Tell that it begins, as `OpenItem.opening` says."""
        yield Told("response.output_item.added", {"item": self.item("in_progress")})

    def piece(self, text: str) -> Told:
        """Tell what is new of its arguments, as `OpenItem.piece` says."""
        self._pieces.append(text)
        event = "response.function_call_arguments.delta"
        return Told(event, {"item_id": self._id, "delta": text})

    def closing(self, status: Status) -> Iterator[Told]:
        """Tell that it ends, as `OpenItem.closing` says."""
        fields = {"item_id": self._id, "name": self._name, "arguments": "".join(self._pieces)}
        yield Told("response.function_call_arguments.done", fields)
        yield Told("response.output_item.done", {"item": self.item(status)})

    def item(self, status: Status) -> OutputItem:
        """All of it, as `OpenItem.item` says."""
        return OutputCall(
            id=self._id,
            status=status,
            call_id=self._call_id,
            name=self._name,
            arguments="".join(self._pieces),
        )
