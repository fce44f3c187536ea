"""Who is told of a token: those who are given outputs before the last one, and at the end all."""

import asyncio

import pytest

from raydix.ids import AskingId, RequestId
from raydix.runtime.api.live_requests import LiveRequests
from raydix.runtime.api.open_requests import OpenRequest
from raydix.runtime.api.request_stream import RequestStream, StreamedRequest
from raydix.runtime.api.sampling_params import OutputKind, SamplingParams
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.client import FinishReason, RequestDelta, SubmitRequest
from raydix.runtime.messages.plan import DeviceSampling

ASKING = AskingId(3)


def open_request(kind: OutputKind, told: list[str]) -> tuple[LiveRequests, OpenRequest]:
    stream = RequestStream(
        StreamedRequest(
            request_id=RequestId("r"),
            prompt=None,
            prompt_token_ids=[1],
            params=SamplingParams(max_tokens=9, output_kind=kind),
            ending_token_ids=frozenset(),
            submitted_s=0.0,
        ),
        None,
    )
    submission = SubmitRequest(
        asking=ASKING,
        request_id=RequestId("r"),
        token_ids=int32_array((1,)),
        sampling=DeviceSampling(seed=1),
        max_tokens=9,
    )
    request = OpenRequest(
        submission, stream, lambda: told.append("news"), lambda _: None, ends_s=float("inf")
    )
    live = LiveRequests()
    live.add(request)
    return live, request


@pytest.mark.parametrize(
    ("kind", "num_told"), [(OutputKind.FINAL, 0), (OutputKind.DELTA, 1), (OutputKind.CUMULATIVE, 1)]
)
async def test_only_who_is_given_parts_is_told_of_tokens(kind: OutputKind, num_told: int) -> None:
    told: list[str] = []
    live, request = open_request(kind, told)

    for token in (5, 6):
        assert live.push_tokens([ASKING], [token], 1.0) == []
    await asyncio.sleep(0)

    assert len(told) == num_told
    assert (request.take() is None) == (not num_told)
    ending = RequestDelta(
        asking=ASKING,
        request_id=RequestId("r"),
        token_ids=int32_array((7,)),
        finished=FinishReason.LENGTH,
    )
    live.push(request, ending, 2.0)
    await asyncio.sleep(0)
    assert len(told) == num_told + 1
    assert request.num_tokens == 3
