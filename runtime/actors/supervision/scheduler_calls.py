"""What clients ask of an engine's Scheduler through the Supervisor."""

import secrets
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from raydix.errors import BadRequest
from raydix.runtime.actors.supervision.keeper import Keeper
from raydix.runtime.scheduler.events import (
    BeginRecording,
    EndRecording,
    RecordingTold,
    TakeRecording,
)

_SALT_BYTES = 32


class SchedulerCalls:
    """Passes control calls on to the Scheduler that serves, and its answers back."""

    def __init__(self, scheduler: Keeper) -> None:
        self._scheduler = scheduler

    @property
    def all(self) -> tuple[Callable[..., Any], ...]:
        """The methods that clients may call."""
        recording = (self.begin_recording, self.take_recording, self.end_recording)
        return (self.explain, self.prefetch_state, *recording)

    async def explain(self, request_id: str) -> dict[str, Any] | None:
        """Where the prompt of a recent request came from, by token range; None if not known."""
        return await (await self._scheduler.serving()).call("explain", request_id)

    async def prefetch_state(self, request_id: str) -> dict[str, Any] | None:
        """How far a client's prefetch has come, or what has become of it; None if not known."""
        return await (await self._scheduler.serving()).call("prefetch_state", request_id)

    async def begin_recording(self, block_tokens: int | None) -> dict[str, Any]:
        """Record requests from now on, in blocks of so many tokens; None: of a page's.

        Returns the recording's name, and its first part. Raises BadRequest.
        """
        if block_tokens is not None and type(block_tokens) is not int:
            raise BadRequest(f"block_tokens is {block_tokens!r}; expected a whole number, or None.")
        # The salt is drawn anew each time, and ends with the recording: nobody can derive
        # anybody's keys from the hashes, nor join what two recordings say.
        begin = BeginRecording(
            name=secrets.token_hex(8),
            salt=secrets.token_bytes(_SALT_BYTES),
            block_tokens=block_tokens,
        )
        return await self._record(begin)

    async def take_recording(self, name: str) -> dict[str, Any]:
        """What was recorded since this was last called. Raises BadRequest if it has ended."""
        return await self._record(TakeRecording(name=name))

    async def end_recording(self, name: str) -> dict[str, Any]:
        """Record no more; returns the rest. Raises BadRequest if it has ended."""
        return await self._record(EndRecording(name=name))

    async def _record(self, order: BeginRecording | TakeRecording | EndRecording) -> dict[str, Any]:
        told: RecordingTold = await (await self._scheduler.serving()).call("record", order)
        if told.part is None:
            raise BadRequest(str(told.refusal))
        return {"name": told.name, **asdict(told.part)}
