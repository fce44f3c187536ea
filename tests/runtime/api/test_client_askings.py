"""A request id that a client uses again: news of its earlier use is nobody's."""

import asyncio

from raydix.runtime.messages.client import AbortRequest, FinishReason, StopRequest, SubmitRequest
from tests.runtime.api.fake_engine import delta
from tests.runtime.api.small_client import TOKENIZER, collect, submitted, turns


async def test_an_id_used_again_after_an_abort_hears_nothing_of_its_earlier_use(client, link):
    outputs = client.generate([1], None, "r")
    first = asyncio.create_task(anext(outputs))
    await submitted(link)
    link.deliver(delta("r", [5]))
    await first
    await outputs.aclose()
    task = asyncio.create_task(collect(client.generate([1], None, "r")))
    await submitted(link, 2)
    link.deliver(delta("r", [6], asking=1), delta("r", asking=1, finished=FinishReason.ABORT))
    link.deliver(delta("r", [8], asking=2, finished=FinishReason.LENGTH))
    assert (await task)[-1].outputs[0].token_ids == [8]
    assert [type(each) for each in link.sent] == [SubmitRequest, AbortRequest, SubmitRequest]
    assert client.num_requests == 0


async def test_a_stream_that_is_aborted_and_not_left_keeps_its_own_end(client, link):
    old = asyncio.create_task(collect(client.generate([1], {"stop": "b"}, "r")))
    await submitted(link)
    client.abort("r")
    new = asyncio.create_task(collect(client.generate([1], None, "r")))
    await submitted(link, 2)
    # The stop string of the old use is found when the id stands for the new one.
    link.deliver(delta("r", TOKENIZER.encode("ab"), asking=1))
    await turns()
    assert link.sent_of(StopRequest) == [StopRequest(asking=1, request_id="r")]
    assert (await old)[-1].outputs[0].text == "a"
    link.deliver(delta("r", asking=1, finished=FinishReason.ABORT), delta("r", [7], asking=2))
    await turns()
    client.abort("r")
    client.abort("r")
    assert [each.asking for each in link.sent_of(AbortRequest)] == [1, 2]
    link.deliver(delta("r", asking=2, finished=FinishReason.ABORT))
    assert (await new)[-1].outputs[0].token_ids == [7]
