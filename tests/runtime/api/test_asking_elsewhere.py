"""What is asked at one of several engines: beside its samples, in time, over a link that is up."""

import asyncio
import itertools

import pytest

from raydix.errors import DeadlineExceeded
from raydix.runtime.api.request_options import RequestOptions
from raydix.runtime.messages.client import (
    FailureKind,
    FinishReason,
    PrefetchPrompt,
    SubmitRequest,
)
from tests.runtime.api.fake_engine import FakeLink, delta, echo, failed
from tests.runtime.api.small_client import collect, submitted, turns
from tests.runtime.api.test_askings import (
    begin,
    client,
    end_of,
    lose,
    losses,
    shutting_down,
)

__all__ = ["client", "losses"]


async def test_a_deadline_that_has_passed_is_told_by_the_next_engine(client):
    first, second = FakeLink(), FakeLink()
    client.use("a", first)
    task = await begin(client, first, said=[5], deadline_s=1e-6)
    client.use("b", second)
    await lose(client, first)
    # What is no time at all would be refused as none.
    assert (await submitted(second)).deadline_s > 0
    second.deliver(failed("r", FailureKind.DEADLINE_EXCEEDED))
    with pytest.raises(DeadlineExceeded):
        await asyncio.wait_for(task, 10)


async def test_a_sample_goes_where_the_first_one_is_whoever_has_come_since(client):
    first, others = FakeLink(), [FakeLink() for _ in range(4)]
    client.use("a", first)
    task = await begin(client, first)
    for name, link in zip("bcde", others, strict=True):
        client.use(name, link)
    for number in range(8):
        session = f"s{number}"
        other = client.generate([5], None, session, RequestOptions(session_id=session))
        sample = RequestOptions(session_id=session, sample_of="r")
        for outputs in (other, client.generate([5], None, f"of r {number}", sample)):
            asked = asyncio.create_task(collect(outputs))
            await turns()
            asked.cancel()
    asked_of = [each.request_id for link in others for each in link.sent_of(SubmitRequest)]
    assert asked_of
    assert not any(each.startswith("of r") for each in asked_of)
    task.cancel()


async def test_what_would_go_over_a_link_whose_end_nobody_has_noticed_goes_over_another(client):
    first, second = FakeLink(echo), FakeLink(echo)
    client.use("a", first)
    client.use("b", second)
    first.is_closed = True
    for number in range(8):
        assert await asyncio.wait_for(client.prefetch([number, 1]), 10) == {"l3": 2}
    assert len(second.sent_of(PrefetchPrompt)) == 8


async def test_news_of_a_former_asking_are_heard_by_nobody(client):
    first, second = FakeLink(), FakeLink()
    client.use("a", first)
    task = await begin(client, first, said=[5])
    former = first.asking_of("r")
    client.use("b", second)
    first.deliver(shutting_down("r"))
    await submitted(second)
    first.deliver(delta("r", [9], asking=former))
    await turns()
    second.deliver(delta("r", [6, 7], finished=FinishReason.LENGTH))
    assert (await end_of(task)).token_ids == [5, 6, 7]


async def test_after_a_loss_ids_are_in_use_for_what_waits_alone(client):
    first, second = FakeLink(), FakeLink()
    client.use("a", first)
    aborted, left, waiting = [await begin(client, first, name) for name in ("r", "s", "t")]
    prefetched = asyncio.create_task(client.prefetch([5]))
    await turns()
    client.abort("r")
    left.cancel()
    await asyncio.gather(left, return_exceptions=True)
    await lose(client, first)
    await asyncio.gather(aborted, return_exceptions=True)
    prefetched.cancel()
    await asyncio.gather(prefetched, return_exceptions=True)
    assert set(client._askings.names._in_use) == {"t"}
    for name in ("r", "s"):
        client._askings.names.require_free(name)
    client.use("a", second)
    assert [each.request_id for each in second.sent] == ["t"]
    waiting.cancel()


async def test_what_was_lost_twice_is_asked_once_again(client):
    links = [FakeLink() for _ in range(3)]
    client.use("a", links[0])
    task = await begin(client, links[0], said=[5])
    for former, link in itertools.pairwise(links):
        await lose(client, former)
        client.use("a", link)
        await submitted(link)
    assert [len(link.sent) for link in links] == [1, 1, 1]
    assert len(client._askings._live.unended) == 1
    links[2].deliver(delta("r", [6], finished=FinishReason.LENGTH))
    assert (await end_of(task)).token_ids == [5, 6]


async def test_engines_that_come_and_go_for_days_leave_nothing_behind(client):
    for number in range(20):
        link = FakeLink(echo)
        client.use(f"service/{number}", link)
        await lose(client, link, f"service/{number}")
    last = FakeLink(echo)
    client.use("service/20", last)
    assert len(await collect(client.generate([5, 6], {"max_tokens": 2}))) > 0

    assert client._askings._lines.down == []
    assert list(client._askings._readers) == ["service/20"]
