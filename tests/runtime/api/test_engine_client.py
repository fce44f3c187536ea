import asyncio
import contextlib
from functools import partial

import pytest

from raydix.errors import (
    BadRequest,
    Cancelled,
    DeadlineExceeded,
    EngineDead,
    Overloaded,
    PromptTooLong,
)
from raydix.runtime.actors.links.link import LinkClosed
from raydix.runtime.actors.links.socket_dialer import connect
from raydix.runtime.actors.links.socket_listener import listen
from raydix.runtime.api.request_options import RequestOptions
from raydix.runtime.api.sampling_params import SamplingParams
from raydix.runtime.messages.client import (
    AbortRequest,
    FailureKind,
    FinishReason,
    StopRequest,
    SubmitRequest,
    TokenFrame,
)
from raydix.runtime.messages.hello import Hello, Role
from raydix.runtime.messages.plan import TokenLogprobs
from tests.runtime.api.fake_engine import FakeLink, delta, echo, failed
from tests.runtime.api.small_client import LIMITS, TOKENIZER, client_over, collect, submitted, turns


async def test_a_request_is_sent_once_with_all_that_was_asked(client, link):
    params = SamplingParams(temperature=0, max_tokens=3, stop_token_ids=[9], seed=4)
    options = RequestOptions(
        priority=2, cache_salt="s", session_id="t", routing_key="k", deadline_s=1.5
    )
    task = asyncio.create_task(collect(client.generate([1, 2], params, "r", options)))
    sent = await submitted(link)
    assert (sent.request_id, sent.token_ids.tolist(), sent.max_tokens) == ("r", [1, 2], 3)
    assert sent.stop_token_ids == (9, 256)
    assert (sent.sampling.seed, sent.sampling.temperature) == (4, 0.0)
    assert (sent.priority, sent.cache_salt, sent.session_id) == (2, "s", "t")
    assert (sent.routing_key, sent.deadline_s) == ("k", 1.5)
    link.deliver(delta("r", [7], finished=FinishReason.LENGTH))
    (output,) = await task
    assert output.outputs[0].token_ids == [7]
    assert output.prompt_token_ids == [1, 2]


async def test_each_request_without_a_seed_gets_another_one(client, link):
    tasks = [asyncio.create_task(collect(client.generate([1]))) for _ in range(2)]
    await submitted(link, 2)
    first, second = link.sent_of(SubmitRequest)
    assert first.sampling.seed != second.sampling.seed
    assert first.request_id != second.request_id
    for each in (first, second):
        link.deliver(delta(each.request_id, finished=FinishReason.LENGTH))
    await asyncio.gather(*tasks)


async def test_text_is_tokenised_and_returned(client, link):
    task = asyncio.create_task(collect(client.generate("abc")))
    sent = await submitted(link)
    assert sent.token_ids.tolist() == TOKENIZER.encode("abc")
    link.deliver(delta(sent.request_id, TOKENIZER.encode("de"), finished=FinishReason.LENGTH))
    (output,) = await task
    assert (output.prompt, output.outputs[0].text) == ("abc", "de")


async def test_one_frame_feeds_many_streams():
    link = FakeLink(echo)
    client = client_over(link, LIMITS, TOKENIZER)
    results = await asyncio.gather(
        *(collect(client.generate([i, i + 1, i + 2])) for i in range(50))
    )
    for i, outputs in enumerate(results):
        assert outputs[-1].outputs[0].token_ids == [i, i + 1, i + 2]
        assert [each.finished for each in outputs].count(True) == 1
    assert client.num_requests == 0
    await client.close()


async def test_requests_and_tokens_survive_a_real_socket(tmp_path):
    """The Scheduler's part is an echo; messages go through the codec and a unix socket."""

    async def serve(link):
        with contextlib.suppress(LinkClosed):
            while True:
                request = await link.receive()

                sources = {"computed:not_found": len(request.token_ids)}
                entry = TokenLogprobs(
                    token_ids=(int(request.token_ids[0]),), logprobs=(-0.5,), ranks=(1,)
                )
                news = partial(delta, request.request_id, asking=request.asking)
                first = news(
                    request.token_ids[:1], logprobs=(entry,), cached_tokens_by_source=sources
                )
                rest = news(
                    request.token_ids[1:], logprobs=(entry,) * 2, finished=FinishReason.LENGTH
                )
                link.send(TokenFrame(deltas=(first, rest)))

    def hello(role):
        return Hello(role=role, name="test", incarnation=0, pid=1)

    listener = await listen(f"unix:{tmp_path}/s", hello(Role.SCHEDULER), b"secret", serve)
    link = await connect(listener.address, hello(Role.CLIENT), b"secret")
    client = client_over(link, LIMITS, TOKENIZER)
    outputs = await collect(client.generate([65, 66, 67], {"logprobs": 0, "seed": 2**63 - 1}))
    assert outputs[-1].outputs[0].token_ids == [65, 66, 67]
    assert outputs[-1].outputs[0].finish_reason == "length"
    assert outputs[-1].metrics.cached_tokens_by_source == {"computed:not_found": 3}
    assert outputs[-1].outputs[0].cumulative_logprob == -1.5
    await listener.close()
    await client.close()


async def test_a_slow_caller_gets_merged_outputs(client, link):
    outputs = client.generate([1], {"output_kind": "delta"}, "r")
    first = asyncio.create_task(anext(outputs))
    await submitted(link)
    link.deliver(delta("r", [5]))
    await first
    for token_id in range(6, 10):
        link.deliver(delta("r", [token_id]))
    await turns()
    assert (await anext(outputs)).outputs[0].token_ids == [6, 7, 8, 9]
    await outputs.aclose()


@pytest.mark.parametrize("way_out", ["aclose", "break", "cancel", "timeout"])
async def test_leaving_the_loop_aborts(client, link, way_out):
    async def consume():
        outputs = client.generate([1], None, "r")
        async for _ in outputs:
            if way_out == "break":
                break
            if way_out == "aclose":
                await outputs.aclose()

    task = asyncio.create_task(asyncio.wait_for(consume(), 0.01 if way_out == "timeout" else 5))
    await submitted(link)
    link.deliver(delta("r", [5]))
    await turns()
    if way_out == "cancel":
        task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await turns()
    assert [each.request_id for each in link.sent_of(AbortRequest)] == ["r"]
    assert client.num_requests == 1
    link.deliver(delta("r", [6]), delta("r", finished=FinishReason.ABORT))
    await turns()
    assert client.num_requests == 0


async def test_a_finished_request_is_not_aborted(link, client):
    task = asyncio.create_task(collect(client.generate([1], None, "r")))
    await submitted(link)
    link.deliver(delta("r", [5], finished=FinishReason.LENGTH))
    await task
    assert link.sent_of(AbortRequest) == []


async def test_a_stop_string_is_reported_once_and_ends_the_stream_at_once(client, link):
    task = asyncio.create_task(collect(client.generate([1], {"stop": "b"}, "r")))
    await submitted(link)
    link.deliver(delta("r", TOKENIZER.encode("ab")))
    link.deliver(delta("r", TOKENIZER.encode("c")))
    outputs = await task
    await turns()
    assert (outputs[-1].outputs[0].text, outputs[-1].outputs[0].finish_reason) == ("a", "stop")
    assert link.sent_of(StopRequest) == [StopRequest(asking=1, request_id="r")]
    assert link.sent_of(AbortRequest) == []
    assert client.num_requests == 1
    link.deliver(delta("r", finished=FinishReason.STOP))
    await turns()
    assert client.num_requests == 0


async def test_a_stop_string_in_the_last_delta_needs_no_report(client, link):
    task = asyncio.create_task(collect(client.generate([1], {"stop": "b"}, "r")))
    await submitted(link)
    link.deliver(delta("r", TOKENIZER.encode("ab"), finished=FinishReason.LENGTH))
    assert (await task)[-1].outputs[0].finish_reason == "stop"
    assert link.sent_of(StopRequest) == []


async def test_abort_ends_the_stream_with_reason_abort(client, link):
    task = asyncio.create_task(collect(client.generate([1], None, "r")))
    await submitted(link)
    client.abort("r")
    client.abort("unknown")
    assert link.sent_of(AbortRequest) == [AbortRequest(asking=1, request_id="r")]
    link.deliver(delta("r", finished=FinishReason.ABORT))
    (output,) = await task
    assert (output.finished, output.outputs[0].finish_reason) == (True, "abort")


async def test_a_request_id_in_use_is_a_bad_request(client, link):
    outputs = client.generate([1], None, "r")
    first = asyncio.create_task(anext(outputs))
    await submitted(link)
    with pytest.raises(BadRequest, match="in use"):
        await collect(client.generate([1], None, "r"))
    link.deliver(delta("r", [5]))
    assert (await first).outputs[0].token_ids == [5]
    await outputs.aclose()


async def test_loss_of_the_link_is_engine_dead_for_all(client, link):
    tasks = [asyncio.create_task(collect(client.generate([1]))) for _ in range(3)]
    await submitted(link, 3)
    link.break_off()
    errors = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(each) for each in errors] == [EngineDead] * 3
    assert client.is_closed
    with pytest.raises(EngineDead):
        await collect(client.generate([1]))


async def test_tokens_before_the_loss_are_delivered(client, link):
    outputs = client.generate([1], None, "r")
    first = asyncio.create_task(anext(outputs))
    await submitted(link)
    link.deliver(delta("r", [5]))
    link.break_off()
    assert (await first).outputs[0].token_ids == [5]
    with pytest.raises(EngineDead):
        await anext(outputs)


async def test_closing_the_client_cancels_open_streams(client, link):
    task = asyncio.create_task(collect(client.generate([1])))
    await submitted(link)
    await client.close()
    with pytest.raises(Cancelled):
        await task
    assert link.is_closed


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        (FailureKind.BAD_REQUEST, BadRequest),
        (FailureKind.OVERLOADED, Overloaded),
        (FailureKind.DEADLINE_EXCEEDED, DeadlineExceeded),
        (FailureKind.ENGINE_DEAD, EngineDead),
    ],
)
async def test_failures_are_raised(client, link, kind, error):
    task = asyncio.create_task(collect(client.generate([1], {"output_kind": "final"}, "r")))
    await submitted(link)
    link.deliver(delta("r", [5]), failed("r", kind))
    with pytest.raises(error, match="because"):
        await task
    assert client.num_requests == 0
    assert link.sent_of(AbortRequest) == []


@pytest.mark.parametrize(
    ("prompt", "params", "options", "error"),
    [
        ([], None, None, BadRequest),
        ([300], None, None, BadRequest),
        ("", None, None, BadRequest),
        ([1] * 16, None, None, PromptTooLong),
        ("a" * 16, None, None, PromptTooLong),
        ([1], {"stop_token_ids": [257]}, None, BadRequest),
        ([1], {"temprature": 1}, None, BadRequest),
        ("half of a pair: \ud800", None, None, BadRequest),
        ({"prompt": "\ud800"}, None, None, BadRequest),
        ([1], None, RequestOptions(deadline_s=0), BadRequest),
        ([1], None, RequestOptions(deadline_s="1"), BadRequest),
        ([1], None, RequestOptions(deadline_s=float("nan")), BadRequest),
        ([1], None, RequestOptions(deadline_s=float("inf")), BadRequest),
        ([1], None, RequestOptions(deadline_s=10**400), BadRequest),
        ([1], None, RequestOptions(priority="high"), BadRequest),
        ([1], None, RequestOptions(priority=1.5), BadRequest),
        ([1], None, RequestOptions(priority=2**70), BadRequest),
        ([1], None, RequestOptions(cache_salt=3), BadRequest),
        ([1], None, RequestOptions(cache_salt=""), BadRequest),
        ([1], None, RequestOptions(cache_salt="\ud800"), BadRequest),
        ([1], None, RequestOptions(session_id=3), BadRequest),
        ([1], None, RequestOptions(routing_key=""), BadRequest),
        ([1], None, RequestOptions(session_id="x" * 2000), BadRequest),
    ],
)
async def test_what_cannot_be_served_is_not_sent(client, link, prompt, params, options, error):
    with pytest.raises(error):
        await collect(client.generate(prompt, params, None, options))
    assert link.sent == []


@pytest.mark.parametrize("request_id", [5, "", "\ud800", "x" * 2000])
async def test_a_request_id_that_cannot_travel_is_a_bad_request(client, link, request_id):
    with pytest.raises(BadRequest, match="request_id"):
        await collect(client.generate([1], None, request_id))
    assert link.sent == []


@pytest.mark.parametrize(("prompt", "params"), [("text", None), ([1], {"stop": "a"})])
async def test_without_a_tokenizer_text_is_a_bad_request(link, prompt, params):
    client = client_over(link)
    with pytest.raises(BadRequest, match="no tokenizer"):
        await collect(client.generate(prompt, params))
    await client.close()


async def test_a_stream_holds_no_more_than_its_output_however_slow_the_caller(client, link):
    outputs = client.generate([1], {"output_kind": "delta"}, "r")
    first = asyncio.create_task(anext(outputs))
    await submitted(link)
    for _ in range(1000):
        link.deliver(delta("r", [5]))
    link.deliver(delta("r", finished=FinishReason.LENGTH))
    await turns()
    rest = [await first, *await collect(outputs)]
    assert sum(len(each.outputs[0].token_ids) for each in rest) == 1000
    assert len(rest) <= 2


async def test_min_tokens_that_leave_no_token_to_sample_are_refused(client, link):
    params = SamplingParams(min_tokens=1, stop_token_ids=range(256))
    with pytest.raises(BadRequest, match=r"min_tokens is 1, .* leaves no token at all"):
        await collect(client.generate([1, 2], params))
    assert not link.sent_of(SubmitRequest)


async def test_many_ids_outside_the_vocabulary_are_told_by_the_first(client):
    params = SamplingParams(stop_token_ids=range(1000))
    with pytest.raises(BadRequest, match=r"has \[257, .*, 264\]; expected ids from 0 to 256"):
        await collect(client.generate([1, 2], params))
