"""Requests go on over another link once theirs is lost."""

import asyncio

import pytest

from raydix.errors import EngineDead
from raydix.runtime.api import engine_connection
from raydix.runtime.api.client import AsyncLLM
from raydix.runtime.messages.client import (
    FinishReason,
    PrefetchPrompt,
    RequestDelta,
    RetainSession,
    SubmitRequest,
)
from tests.runtime.api.fake_engine import delta, echo
from tests.runtime.api.test_client import last, never


async def begin(cluster, engine, *, said=(), **fields):
    """Ask for an echo of [5, 6, 7], of which so much has come."""
    cluster.engines["raydix"] = cluster.handle
    cluster.answer = never
    task = asyncio.create_task(last(engine.generate([5, 6, 7], None, "r", **fields)))
    async with asyncio.timeout(5):
        while not (cluster.links and cluster.links[-1].sent_of(SubmitRequest)):
            await asyncio.sleep(0)
        if said:
            sources = {"l1": 2, "computed:not_found": 1}
            cluster.links[-1].deliver(delta("r", said, cached_tokens_by_source=sources))
            while not engine._connection._client._askings._live.get(1).stream.token_ids.size:
                await asyncio.sleep(0)
    cluster.answer = echo
    return task


@pytest.mark.parametrize("said", [[], [5], [5, 6]])
async def test_after_a_lost_link_a_request_goes_on_where_it_was(cluster, said):
    engine = AsyncLLM()
    task = await begin(cluster, engine, said=said)
    [asked] = cluster.links[0].sent
    cluster.links[0].break_off()
    output = await task
    assert output.outputs[0].token_ids == [5, 6, 7]
    # Of its prompt counts what the first asking found.
    assert output.num_cached_tokens == (2 if said else 0)

    [again] = cluster.links[1].sent
    assert again.known_output.tolist() == said
    assert (again.sampling, again.max_tokens) == (asked.sampling, asked.max_tokens)
    assert again.asking != asked.asking
    assert (await last(engine.generate([3], None, "r"))).outputs[0].token_ids == [3]
    assert len(cluster.links) == 2
    await engine.disconnect()


async def test_the_next_link_is_known_as_a_later_one_of_the_same_client(cluster):
    engine, other = AsyncLLM(), AsyncLLM()
    task = await begin(cluster, engine)
    cluster.links[0].break_off()
    await task
    await last(other.generate([3]))
    told = [(each.name, each.incarnation) for each in cluster.hellos]
    assert told[0] == (told[1][0], told[1][1] - 1)
    assert told[2][0] != told[0][0]
    await asyncio.gather(engine.disconnect(), other.disconnect())


async def test_a_link_is_not_made_twice_by_two_who_find_none(cluster):
    # The second one would end the first.
    engine = AsyncLLM()
    cluster.engines["raydix"] = cluster.handle
    connection = engine._connection
    [found] = connection.engines
    await asyncio.gather(*(connection._join(found, cluster.handle) for _ in range(2)))
    assert len(cluster.links) == 1
    assert not cluster.links[0].is_closed
    await engine.disconnect()


async def test_a_deadline_goes_on_over_a_loss(cluster):
    engine = AsyncLLM()
    task = await begin(cluster, engine, deadline_s=1000.0)
    cluster.links[0].break_off()
    await task
    [again] = cluster.links[1].sent
    assert 0 < again.deadline_s < 1000
    await engine.disconnect()


async def test_a_request_can_be_aborted_while_there_is_no_link(cluster):
    engine = AsyncLLM()
    task = await begin(cluster, engine, said=[5])
    cluster.refuses_links = True
    cluster.links[0].break_off()
    while not engine._connection._client.is_closed:
        await asyncio.sleep(0)
    await engine.abort("r")
    output = await task
    assert (output.outputs[0].token_ids, output.outputs[0].finish_reason) == ([5], "abort")
    await engine.disconnect()


async def test_a_request_left_while_there_is_no_link_is_not_asked_again(cluster):
    engine = AsyncLLM()
    task = await begin(cluster, engine, said=[5])
    cluster.refuses_links = True
    cluster.links[0].break_off()
    while not engine._connection._client.is_closed:
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    cluster.refuses_links = False
    assert (await last(engine.generate([3], None, "r"))).outputs[0].token_ids == [3]
    assert [each.token_ids.tolist() for each in cluster.links[-1].sent_of(SubmitRequest)] == [[3]]
    await engine.disconnect()


async def test_a_request_whose_engine_is_gone_fails(cluster):
    engine = AsyncLLM()
    task = await begin(cluster, engine, said=[5])
    cluster.handle.is_dead = True
    cluster.links[0].break_off()
    with pytest.raises(EngineDead, match="Supervisor is gone"):
        await task
    await engine.disconnect()


async def test_no_output_goes_on_with_other_weights(cluster):
    engine = AsyncLLM()
    task = await begin(cluster, engine, said=[5])
    cluster.handle.fingerprint = "others"
    cluster.links[0].break_off()
    with pytest.raises(EngineDead, match="serves another model"):
        await task
    assert (await last(engine.generate([3]))).outputs[0].token_ids == [3]
    await engine.disconnect()


async def test_a_loss_while_a_request_is_asked_again_is_one_more(cluster):
    engine = AsyncLLM()
    task = await begin(cluster, engine, said=[5])

    def break_off_once(link, message):
        cluster.answer = echo
        link.break_off()

    cluster.answer = break_off_once
    cluster.links[0].break_off()
    assert (await task).outputs[0].token_ids == [5, 6, 7]
    assert len(cluster.links) == 3
    await engine.disconnect()


async def test_a_link_that_breaks_at_once_is_not_made_anew_at_once(cluster, monkeypatch):
    monkeypatch.setattr(engine_connection, "_FIRST_RETRY_S", 1000.0)
    engine = AsyncLLM()
    task = await begin(cluster, engine, said=[5])
    cluster.answer = lambda link, message: link.break_off()
    cluster.links[0].break_off()
    async with asyncio.timeout(10):
        while not (len(cluster.links) == 2 and engine._connection._client.is_closed):
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
    assert len(cluster.links) == 2
    # Whoever asks for something new makes a link for all.
    cluster.answer = echo
    assert (await last(engine.generate([3], None))).outputs[0].token_ids == [3]
    assert (await task).outputs[0].token_ids == [5, 6, 7]
    await engine.disconnect()


async def test_new_requests_wait_while_the_engine_makes_its_scheduler_anew(cluster):
    engine = AsyncLLM()
    task = await begin(cluster, engine, said=[5])
    cluster.refuses_links = True
    cluster.links[0].break_off()
    client = engine._connection._client
    while not client.is_closed:
        await asyncio.sleep(0)
    later = asyncio.create_task(last(engine.generate([8, 9], None, "s")))
    async with asyncio.timeout(10):
        while len(client._askings._waiting()) < 2:
            await asyncio.sleep(0)
    cluster.refuses_links = False
    assert (await later).outputs[0].token_ids == [8, 9]
    assert (await task).outputs[0].token_ids == [5, 6, 7]
    await engine.disconnect()


async def test_a_request_alone_waits_for_an_engine_that_was_idle_as_its_link_was_lost(cluster):
    engine = AsyncLLM()
    cluster.engines["raydix"] = cluster.handle
    assert (await last(engine.generate([3]))).outputs[0].token_ids == [3]
    cluster.refuses_links = True
    cluster.links[0].break_off()
    client = engine._connection._client
    while not client.is_closed:
        await asyncio.sleep(0)
    task = asyncio.create_task(last(engine.generate([8, 9])))
    async with asyncio.timeout(10):
        while not client.has_waiting:
            await asyncio.sleep(0)
    cluster.refuses_links = False
    assert (await task).outputs[0].token_ids == [8, 9]

    cluster.engines.clear()
    cluster.links[-1].break_off()
    while not client.is_closed:
        await asyncio.sleep(0)
    with pytest.raises(EngineDead, match="there is no engine"):
        await last(engine.generate([3]))
    await engine.disconnect()


async def test_a_prefetch_goes_on_over_the_next_link(cluster):
    cluster.answer = never
    engine = AsyncLLM()
    cluster.engines["raydix"] = cluster.handle
    task = asyncio.create_task(engine.prefetch([5, 6, 7]))
    async with asyncio.timeout(5):
        while not (cluster.links and cluster.links[-1].sent_of(PrefetchPrompt)):
            await asyncio.sleep(0)
        cluster.links[0].break_off()
        while not (len(cluster.links) > 1 and cluster.links[1].sent_of(PrefetchPrompt)):
            await asyncio.sleep(0)
        [[asked], [again]] = [link.sent_of(PrefetchPrompt) for link in cluster.links]
        assert again.asking != asked.asking
        assert again.request_id == asked.request_id
        done = RequestDelta(
            asking=again.asking,
            request_id=again.request_id,
            finished=FinishReason.LENGTH,
            cached_tokens_by_source={"l3": 3},
        )
        cluster.links[1].deliver(done)
        assert await task == {"l3": 3}
    await engine.disconnect()


async def test_a_prefetch_and_a_hint_wait_while_there_is_no_link(cluster):
    engine = AsyncLLM()
    request = await begin(cluster, engine, said=[5])
    cluster.refuses_links = True
    cluster.links[0].break_off()
    while not engine._connection._client.is_closed:
        await asyncio.sleep(0)
    prefetch = asyncio.create_task(engine.prefetch([5, 6, 7]))
    await engine.retain("mine", {"end": True})
    while not engine._connection._client._askings._waiting_prefetches():
        await asyncio.sleep(0)

    cluster.refuses_links = False
    async with asyncio.timeout(10):
        await request
        while not (cluster.links[-1].sent_of(PrefetchPrompt)):
            await asyncio.sleep(0)
        assert len(cluster.links[-1].sent_of(RetainSession)) == 1
    assert await prefetch == {"l3": 3}
    await engine.disconnect()


async def test_a_prefetch_and_hints_that_wait_end_with_their_engine(cluster):
    engine = AsyncLLM()
    request = await begin(cluster, engine, said=[5])
    cluster.refuses_links = True
    cluster.links[0].break_off()
    while not engine._connection._client.is_closed:
        await asyncio.sleep(0)
    prefetch = asyncio.create_task(engine.prefetch([5, 6, 7]))
    await engine.retain("mine", {"end": True})
    cluster.handle.is_dead = True
    with pytest.raises(EngineDead):
        await prefetch
    with pytest.raises(EngineDead):
        await request
    await engine.disconnect()
