"""A recording of what an engine is asked, as its client takes it."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from raydix.runtime.messages.recording import RecordedHint, RecordedRequest, RecordingPart
from raydix.runtime.messages.retention import Retention, RetentionKind

Ask = Callable[..., Awaitable[Any]]
"""A control call of an engine, by its name."""


class Recording:
    """A recording that an engine makes; `AsyncLLM.begin_recording` begins one.

    It has to be taken now and then: an engine keeps 16 MiB, and drops it all after a minute in
    which nobody has taken anything.
    """

    def __init__(self, ask: Ask, told: Mapping[str, Any]) -> None:
        """`told`: what the engine answered when it began."""
        self._ask = ask
        self._name = str(told["name"])
        self.block_tokens = int(told["block_tokens"])

    async def take(self) -> RecordingPart:
        """What was recorded since this was last called. Raises BadRequest if it has ended."""
        return _part_of(await self._ask("take_recording", self._name))

    async def end(self) -> RecordingPart:
        """Record no more; the rest, requests that still run as they are. Raises BadRequest."""
        return _part_of(await self._ask("end_recording", self._name))


def _part_of(told: Mapping[str, Any]) -> RecordingPart:
    return RecordingPart(
        block_tokens=told["block_tokens"],
        requests=tuple(
            RecordedRequest(
                **{**each, "retention": each["retention"] and _retention_of(each["retention"])}
            )
            for each in told["requests"]
        ),
        hints=tuple(
            RecordedHint(
                time_s=each["time_s"],
                session=each["session"],
                retention=_retention_of(each["retention"]),
            )
            for each in told["hints"]
        ),
        num_unserved=told["num_unserved"],
        num_dropped=told["num_dropped"],
    )


def _retention_of(told: Mapping[str, Any]) -> Retention:
    return Retention(kind=RetentionKind(told["kind"]), seconds=told["seconds"])
