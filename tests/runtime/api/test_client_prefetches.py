"""Prefetches of a client: prompts that are brought to L2 ahead of requests."""

import asyncio

import pytest

from raydix.errors import BadRequest, Cancelled, EngineDead, Overloaded
from raydix.ids import PinId
from raydix.runtime.messages.client import (
    AbortRequest,
    FailureKind,
    FinishReason,
    PrefetchPrompt,
    UnpinPrompt,
)
from raydix.runtime.messages.tenants import tenant_of
from tests.runtime.api.fake_engine import delta, failed
from tests.runtime.api.small_client import turns


async def prefetching(client, link):
    """A prefetch that was sent and not answered: its task and its id."""
    task = asyncio.create_task(client.prefetch([1, 2, 3], "salt"))
    await turns()
    [message] = link.sent_of(PrefetchPrompt)
    assert (message.token_ids.tolist(), message.cache_salt) == ([1, 2, 3], "salt")
    return task, message.request_id


async def test_a_prefetch_tells_where_the_tokens_were(client, link):
    task, request_id = await prefetching(client, link)
    assert client.num_requests == 1
    sources = {"l3": 2, "computed:partial_page": 1}
    link.deliver(delta(request_id, cached_tokens_by_source=sources, finished=FinishReason.PREFETCH))
    assert await task == sources
    assert client.num_requests == 0
    assert not link.sent_of(AbortRequest)


async def test_a_cancelled_prefetch_is_aborted_and_its_last_delta_frees_the_id(client, link):
    task, request_id = await prefetching(client, link)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert link.sent_of(AbortRequest) == [AbortRequest(asking=1, request_id=request_id)]
    link.deliver(delta(request_id, finished=FinishReason.ABORT))
    await turns()
    assert client.num_requests == 0


async def test_a_pin_that_is_cancelled_is_released_as_nobody_hears_its_name(client, link):
    task = asyncio.create_task(client.bring([1, 2, 3], "salt", 60.0))
    await turns()
    [message] = link.sent_of(PrefetchPrompt)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    pin_id = PinId(message.request_id)
    assert link.sent_of(UnpinPrompt) == [UnpinPrompt(pin_id=pin_id, tenant=tenant_of("salt"))]


async def test_a_refused_prefetch_raises_its_error(client, link):
    task, request_id = await prefetching(client, link)
    link.deliver(failed(request_id, FailureKind.OVERLOADED, "full", retry_after_s=2.0))
    with pytest.raises(Overloaded, match="full") as caught:
        await task
    assert caught.value.retry_after_s == 2.0


async def test_a_prefetch_fails_with_the_link(client, link):
    task, _ = await prefetching(client, link)
    link.break_off()
    with pytest.raises(EngineDead):
        await task
    with pytest.raises(EngineDead):
        await client.prefetch([1])


async def test_a_prefetch_is_cancelled_with_its_client(client, link):
    task, _ = await prefetching(client, link)
    await client.close()
    with pytest.raises(Cancelled):
        await task


async def test_a_prompt_that_cannot_be_is_not_prefetched(client, link):
    for prompt in ([], [999], list(range(16))):
        with pytest.raises(BadRequest):
            await client.prefetch(prompt)
    with pytest.raises(BadRequest, match="cache_salt"):
        await client.prefetch([1], "")
    assert not link.sent


async def begun(client, link):
    """A prefetch whose caller waits until it is taken in: its task and its id."""
    task = asyncio.create_task(client.begin_prefetch([1, 2, 3], "salt"))
    await turns()
    [message] = link.sent_of(PrefetchPrompt)
    return task, message.request_id


async def test_a_begun_prefetch_has_a_name_once_it_is_taken_in_and_goes_on(client, link):
    task, request_id = await begun(client, link)
    assert not task.done()
    link.deliver(delta(request_id))
    assert await task == request_id
    assert client.num_requests == 1
    link.deliver(delta(request_id, finished=FinishReason.PREFETCH))
    await turns()
    assert client.num_requests == 0
    assert not link.sent_of(AbortRequest)


async def test_a_begun_prefetch_that_is_refused_raises_its_error(client, link):
    task, request_id = await begun(client, link)
    link.deliver(failed(request_id, FailureKind.OVERLOADED, "full"))
    with pytest.raises(Overloaded, match="full"):
        await task


async def test_who_leaves_before_a_prefetch_is_taken_in_ends_it(client, link):
    task, request_id = await begun(client, link)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await turns()
    assert link.sent_of(AbortRequest) == [AbortRequest(asking=1, request_id=request_id)]


async def test_a_begun_prefetch_ends_with_its_client(client, link):
    task, request_id = await begun(client, link)
    link.deliver(delta(request_id))
    await task
    await client.close()
    await turns()
    assert not client._begun
