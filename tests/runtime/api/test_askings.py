"""What was asked is asked again as it is when its link is lost, whatever befell it just before."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from raydix.errors import BadRequest, DeadlineExceeded, EngineDead
from raydix.runtime.api.engine_client import EngineClient
from raydix.runtime.api.request_options import RequestOptions
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.client import (
    AbortRequest,
    FailureKind,
    FinishReason,
    StopRequest,
    SubmitRequest,
)
from raydix.runtime.messages.plan import PromptLogprobs
from tests.runtime.api.fake_engine import FakeLink, delta, echo, failed
from tests.runtime.api.small_client import LIMITS, TOKENIZER, collect, submitted, turns

TEXT = {each: TOKENIZER.encode(each) for each in "ab"}


@pytest.fixture
async def losses():
    return []


@pytest.fixture
async def client(losses):
    client = EngineClient(LIMITS, TOKENIZER, losses.append)
    yield client
    await client.close()


async def begin(client, link, request_id="r", params=None, said=(), **options):
    """Ask for an output behind [5, 6, 7], of which so much has come."""
    outputs = client.generate([5, 6, 7], params, request_id, RequestOptions(**options))
    task = asyncio.create_task(collect(outputs))
    await submitted(link, len(link.sent_of(SubmitRequest)) + 1)
    if said:
        link.deliver(delta(request_id, said))
        await turns()
    return task


async def lose(client, link, engine="a"):
    link.break_off()
    await lost(client, engine)


async def lost(client, engine="a"):
    async with asyncio.timeout(10):
        while client.has_link(engine):
            await asyncio.sleep(0)


async def end_of(task):
    """The last output of a request that ends."""
    return (await asyncio.wait_for(task, 10))[-1].outputs[0]


async def test_an_abort_that_was_not_answered_before_a_loss_ends_the_request(client):
    first, second = FakeLink(), FakeLink(echo)
    client.use("a", first)
    task = await begin(client, first, said=[5])
    client.abort("r")
    await lose(client, first)
    last = await end_of(task)
    assert (last.finish_reason, last.token_ids) == ("abort", [5])
    client.use("a", second)
    assert not second.sent


async def test_an_id_that_was_used_at_once_after_an_abort_goes_on_for_its_later_request(client):
    first, second = FakeLink(), FakeLink(echo)
    client.use("a", first)
    former = await begin(client, first, said=[9])
    client.abort("r")
    later = await begin(client, first, said=[5])
    await lose(client, first)
    client.use("a", second)
    assert (await end_of(former)).finish_reason == "abort"
    assert (await end_of(later)).token_ids == [5, 6, 7]
    assert len(second.sent) == 1


async def test_what_waits_on_as_its_next_link_is_lost_too_can_be_aborted(client):
    first, second, third = FakeLink(), FakeLink(), FakeLink(echo)
    client.use("a", first)
    task = await begin(client, first, said=[5])
    await lose(client, first)
    second.break_off()
    client.use("a", second)
    client.abort("r")
    assert (await end_of(task)).finish_reason == "abort"
    await lost(client)
    client.use("a", third)
    assert not third.sent


async def test_what_is_left_as_its_next_link_is_lost_too_frees_its_id(client):
    first, second, third = FakeLink(), FakeLink(), FakeLink(echo)
    client.use("a", first)
    task = await begin(client, first, said=[5])
    await lose(client, first)
    second.break_off()
    client.use("a", second)
    with pytest.raises(BadRequest, match="is in use"):
        await collect(client.generate([1], None, "r"))
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await lose(client, second)
    client.use("a", third)
    assert (await collect(client.generate([5, 6], None, "r")))[-1].outputs[0].token_ids == [5, 6]
    assert not third.sent_of(AbortRequest)


def shutting_down(request_id, said=()):
    return replace(failed(request_id, FailureKind.SHUTTING_DOWN), token_ids=int32_array(said))


async def test_what_an_engine_that_stops_leaves_goes_on_at_another(client):
    first, second = FakeLink(), FakeLink(echo)
    client.use("a", first)
    tasks = [await begin(client, first, name, said=[5]) for name in ("r", "s")]
    client.use("b", second)
    first.deliver(shutting_down("r", [6]), shutting_down("s"))
    assert [(await end_of(task)).token_ids for task in tasks] == [[5, 6, 7]] * 2
    known = [each.known_output.tolist() for each in second.sent_of(SubmitRequest)]
    assert known == [[5, 6], [5]]
    # Those of others go there, too.
    for first_token in range(1, 17):
        await collect(client.generate([first_token], None))
    assert len(second.sent_of(SubmitRequest)) == 18


async def test_what_the_last_engine_leaves_as_it_stops_fails_and_all_others_stop(client):
    first, second = FakeLink(), FakeLink()
    client.use("a", first)
    task = await begin(client, first, said=[5])
    client.use("b", second)
    first.deliver(shutting_down("r"))
    await submitted(second)
    second.deliver(shutting_down("r"))
    with pytest.raises(EngineDead, match="because"):
        await asyncio.wait_for(task, 10)
    assert len(first.sent) == len(second.sent) == 1
    # Neither takes anything: the one that is asked says so.
    task = asyncio.create_task(collect(client.generate([1], None, "r")))
    await turns()
    [asked] = [link for link in (first, second) if len(link.sent) == 2]
    asked.deliver(shutting_down("r"))
    with pytest.raises(EngineDead, match="because"):
        await asyncio.wait_for(task, 10)


async def test_an_engine_that_is_back_after_it_stopped_is_asked_again(client):
    first, second, third = FakeLink(), FakeLink(echo), FakeLink(echo)
    client.use("a", first)
    task = await begin(client, first)
    client.use("b", second)
    first.deliver(shutting_down("r"))
    await end_of(task)
    await lose(client, first)
    client.use("a", third)
    for first_token in range(1, 17):
        await collect(client.generate([first_token], None))
    assert third.sent
    assert len(second.sent) > 1


async def test_an_output_that_a_stop_string_ends_as_its_engine_stops_is_not_asked_again(client):
    first, second = FakeLink(), FakeLink(echo)
    client.use("a", first)
    task = await begin(client, first, params={"stop": "b"}, said=TEXT["a"])
    client.use("b", second)
    first.deliver(shutting_down("r", TEXT["b"]))
    last = await end_of(task)
    assert (last.text, last.finish_reason) == ("a", "stop")
    assert not second.sent
    assert (await collect(client.generate([3], None, "r")))[-1].outputs[0].token_ids == [3]


async def test_what_was_aborted_as_its_engine_stops_goes_on_nowhere(client):
    first, second = FakeLink(), FakeLink(echo)
    client.use("a", first)
    task = await begin(client, first, said=[5])
    client.use("b", second)
    client.abort("r")
    first.deliver(shutting_down("r"))
    assert (await end_of(task)).finish_reason == "abort"
    assert not second.sent


async def test_what_was_left_by_its_caller_goes_on_nowhere_and_frees_its_id(client):
    first, second = FakeLink(), FakeLink(echo)
    client.use("a", first)
    task = await begin(client, first, said=[5])
    client.use("b", second)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    first.deliver(shutting_down("r"))
    await turns()
    assert not second.sent
    assert client.num_requests == 0


async def test_a_deadline_that_passes_while_no_engine_is_there_ends_the_request(client):
    first, second = FakeLink(), FakeLink(echo)
    client.use("a", first)
    task = await begin(client, first, said=[5], deadline_s=0.05)
    await lose(client, first)
    with pytest.raises(DeadlineExceeded) as raised:
        await asyncio.wait_for(task, 10)
    assert raised.value.partial.outputs[0].token_ids == [5]
    client.use("a", second)
    assert not second.sent
    assert (await collect(client.generate([3], None, "r")))[-1].outputs[0].token_ids == [3]


async def test_a_deadline_that_passes_once_an_engine_is_asked_again_is_kept_by_that(client):
    first, second = FakeLink(), FakeLink()
    client.use("a", first)
    task = await begin(client, first, said=[5], deadline_s=1000.0)
    await lose(client, first)
    client.use("a", second)
    askings = client._askings
    askings._expire(askings._live.get(second.asking_of("r")))
    second.deliver(delta("r", [6, 7], finished=FinishReason.LENGTH))
    assert (await end_of(task)).token_ids == [5, 6, 7]


async def test_news_that_cannot_be_read_fail_what_their_engine_was_asked_and_nothing_else(
    client, losses
):
    first, second = FakeLink(), FakeLink()
    client.use("a", first)
    broken = await begin(client, first, "r", said=[5])
    client.use("b", second)
    await lose(client, first)
    await submitted(second)
    client.use("a", FakeLink(echo))
    second._inbox.put_nowait("no frame")
    with pytest.raises(EngineDead, match="cannot be read"):
        await asyncio.wait_for(broken, 10)
    await lost(client, "b")
    assert losses == ["a", "b"]
    # What its engine says no more is forgotten, and a later loss is one as ever.
    assert (await collect(client.generate([3], None, "r")))[-1].outputs[0].token_ids == [3]


async def test_what_is_submitted_just_after_a_loss_waits_for_the_next_link(client, losses):
    first, second = FakeLink(), FakeLink(echo)
    client.use("a", first)
    await lose(client, first)
    tasks = [
        asyncio.create_task(collect(client.generate([5, 6], {"n": 2}, "r"))),
        asyncio.create_task(collect(client.generate([7], None, "s"))),
    ]
    await turns()
    # Whoever makes links is told that one is wanted, as it was not before.
    assert losses == ["a"] * 4
    client.use("a", second)
    outputs = [(await asyncio.wait_for(task, 10))[-1].outputs for task in tasks]
    told = [[each.token_ids for each in of_one] for of_one in outputs]
    assert told == [[[5, 6], [5, 6]], [[7]]]
    assert [client.num_requests, len(second.sent)] == [0, 3]


async def test_what_is_submitted_before_a_loss_is_noticed_waits_for_the_next_link(client, losses):
    first, second = FakeLink(), FakeLink(echo)
    client.use("a", first)
    task = asyncio.create_task(collect(client.generate([5], None, "r")))
    first.is_closed = True
    await turns()
    assert not first.sent
    assert not task.done()
    await lose(client, first)
    client.use("a", second)
    assert (await end_of(task)).token_ids == [5]


async def test_a_deadline_counts_for_what_was_never_sent(client):
    first = FakeLink()
    client.use("a", first)
    await lose(client, first)
    outputs = client.generate([5], None, "r", RequestOptions(deadline_s=0.01))
    with pytest.raises(DeadlineExceeded):
        await asyncio.wait_for(collect(outputs), 10)


def scored(start, values):
    """Logprobs of the prompt's tokens from `start` on."""
    bits = np.array(values, np.float32).view(np.int32)
    ranks = int32_array([1] * len(values))
    return PromptLogprobs(start=start, logprob_bits=int32_array(bits), ranks=ranks, num_top=0)


async def test_a_prompt_that_was_half_scored_is_scored_anew_and_one_with_output_is_not(client):
    first, second, third = FakeLink(), FakeLink(), FakeLink()
    client.use("a", first)
    task = await begin(client, first, params={"prompt_logprobs": 0})
    first.deliver(delta("r", prompt_logprobs=(scored(1, [-1.0]),)))
    await turns()
    await lose(client, first)
    client.use("a", second)
    again = await submitted(second)
    assert (again.known_output.tolist(), again.sampling.num_prompt_logprobs) == ([], 0)
    second.deliver(delta("r", [5], prompt_logprobs=(scored(1, [-2.0, -3.0]),)))
    await turns()
    await lose(client, second)
    client.use("a", third)
    once_more = await submitted(third)
    assert (once_more.known_output.tolist(), once_more.sampling.num_prompt_logprobs) == ([5], None)
    third.deliver(delta("r", [6], finished=FinishReason.LENGTH))
    output = (await asyncio.wait_for(task, 10))[-1]
    told = [each and next(iter(each.values())).logprob for each in output.prompt_logprobs]
    assert told == [None, -2.0, -3.0]


async def test_of_several_samples_those_that_have_not_ended_go_on_together(client):
    first, second, third = FakeLink(), FakeLink(), FakeLink()
    client.use("a", first)
    task = await begin(client, first, params={"n": 3, "temperature": 1.0})
    first.deliver(delta("r", [5], finished=FinishReason.LENGTH), delta("r-1", [6]))
    await turns()
    client.use("b", second)
    client.use("c", third)
    await lose(client, first)
    [link] = [each for each in (second, third) if each.sent]
    told = [(each.request_id, each.known_output.tolist(), each.sample_of) for each in link.sent]
    assert told == [("r-1", [6], "r"), ("r-2", [], "r")]
    link.deliver(
        delta("r-1", [7], finished=FinishReason.LENGTH),
        delta("r-2", [8], finished=FinishReason.LENGTH),
    )
    samples = (await asyncio.wait_for(task, 10))[-1].outputs
    assert [each.token_ids for each in samples] == [[5], [6, 7], [8]]


@pytest.mark.parametrize("kind", ["cumulative", "delta", "final"])
@pytest.mark.parametrize("num_lost", range(1, 7))
async def test_text_is_the_same_wherever_a_link_was_lost(client, kind, num_lost):
    token_ids = TOKENIZER.encode("éab€abc")
    first, second = FakeLink(), FakeLink()
    client.use("a", first)
    params = {"stop": "abc", "output_kind": kind}
    task = await begin(client, first, params=params, said=token_ids[:num_lost])
    await lose(client, first)
    client.use("a", second)
    again = await submitted(second)
    assert again.known_output.tolist() == token_ids[:num_lost]
    second.deliver(delta("r", token_ids[num_lost:]))
    outputs = [each.outputs[0] for each in await asyncio.wait_for(task, 10)]
    told = outputs if kind == "delta" else outputs[-1:]
    assert "".join(each.text for each in told) == "éab€"
    assert [token for each in told for token in each.token_ids] == token_ids
    assert outputs[-1].finish_reason == "stop"
    assert len(second.sent_of(StopRequest)) == 1
