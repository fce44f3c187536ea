"""Hints that wait in a client until what they concern has ended."""

from dataclasses import replace

from raydix.ids import AskingId, RequestId
from raydix.runtime.api.engine_line import EngineLines
from raydix.runtime.api.line_choice import SessionLines
from raydix.runtime.api.waiting_hints import WaitingHints
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.client import SubmitRequest
from raydix.runtime.messages.plan import DeviceSampling


def test_nothing_is_kept_of_split_requests_that_have_ended_though_no_hint_comes() -> None:
    names: set[RequestId] = set()
    hints, lines = WaitingHints(names.__contains__), EngineLines(SessionLines())
    sent = SubmitRequest(
        asking=AskingId(1),
        request_id=RequestId("r"),
        token_ids=int32_array([1]),
        sampling=DeviceSampling(seed=0),
        max_tokens=4,
        session_id="s",
        goes_on_elsewhere=True,
    )
    for number in range(10):
        name = RequestId(f"r{number}")
        names.add(name)
        hints.note_asked(replace(sent, request_id=name))
        # One that is asked again has its id still.
        hints.note_released(name, lines)
        assert len(hints._split) == 1
        names.discard(name)
        hints.note_released(name, lines)
    assert not hints._split
