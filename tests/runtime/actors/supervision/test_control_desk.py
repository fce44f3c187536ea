"""How a call is answered to a caller who takes its time."""

import asyncio
from typing import Any

import pytest

from raydix.runtime.actors.engine_record import EngineRecord
from raydix.runtime.actors.supervision import control_calls
from raydix.runtime.actors.supervision.control_calls import Call
from raydix.runtime.actors.supervision.control_desk import ControlDesk
from raydix.runtime.messages.control import ControlCall, ControlResult, pack_values

RECORD = EngineRecord(control_address="unix:/nowhere", client_address="unix:/nowhere", secret=b"s")


class SlowLink:
    """A caller to whom each look at what waits for it has brought one of so many parts."""

    def __init__(self, num_parts: int) -> None:
        self.num_parts = num_parts
        self.sent: list[Any] = []
        self.is_closed = False
        self.left_when_closed: int | None = None
        self._call: list[Any] = [ControlCall(method="files", arguments=pack_values([]))]

    @property
    def buffered_bytes(self) -> int:
        self.num_parts = max(self.num_parts - 1, 0)
        return self.num_parts

    async def receive(self) -> Any:
        if self._call:
            return self._call.pop()
        return await asyncio.get_running_loop().create_future()

    def send(self, message: Any) -> None:
        self.sent.append(message)

    def close(self) -> None:
        self.is_closed = True
        self.left_when_closed = self.num_parts


async def test_a_caller_far_away_gets_all_of_a_long_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_calls, "_FAREWELL_S", 0.001)
    desk = ControlDesk("mine", RECORD, {"files": Call(lambda: {"a": b"b"})}, lambda: None)
    link = SlowLink(num_parts=50)
    async with asyncio.timeout(10):
        await desk.serve(link)  # type: ignore[arg-type]
    assert link.sent == [ControlResult(value=pack_values({"a": b"b"}))]
    assert link.left_when_closed == 0
