"""Several engines of one model behind one handle."""

import asyncio
import logging
import pickle

import pytest

from raydix.errors import BadRequest, EngineDead, UnknownRequest
from raydix.runtime.api import engine_connection
from raydix.runtime.api.service import AsyncService
from raydix.runtime.messages.client import AbortRequest, RetainSession, SubmitRequest
from tests.runtime.api.fake_engine import delta, echo
from tests.runtime.api.test_client import last, never

NAMES = ("a", "b", "c")


@pytest.fixture
async def service(cluster):
    for name in NAMES:
        cluster.add(name)
    async with await AsyncService.connect(NAMES) as service:
        yield service


async def until(is_true):
    async with asyncio.timeout(10):
        while not is_true():
            await asyncio.sleep(0.01)


def asked(cluster, name):
    return [each for link in cluster.links_to(name) for each in link.sent_of(SubmitRequest)]


def loads(cluster):
    return [len(asked(cluster, name)) for name in NAMES]


async def begin(cluster, service, **fields):
    """Ask for an echo of [5, 6, 7], of which 5 has come; returns the engine that was asked, too."""
    cluster.answer = never
    for link in cluster.links:
        link._answer = never
    task = asyncio.create_task(last(service.generate([5, 6, 7], None, "r", **fields)))
    await until(lambda: any(loads(cluster)))
    [name] = [name for name in NAMES if asked(cluster, name)]
    link = cluster.links_to(name)[-1]
    link.deliver(delta("r", [5], cached_tokens_by_source={"l1": 3}))
    asking = link.asking_of("r")
    client = await service.connected()
    await until(lambda: client._askings._live.get(asking).stream.token_ids.size == 1)
    cluster.answer = echo
    for each in cluster.links:
        each._answer = echo
    return task, name, link


async def test_a_session_has_one_engine_and_many_sessions_have_all(cluster, service):
    for _ in range(3):
        await last(service.generate([1, 2], None, session_id="mine"))
    assert sorted(loads(cluster)) == [0, 0, 3]
    for session in range(60):
        await last(service.generate([1, 2], None, session_id=f"s{session}"))
    assert min(loads(cluster)) > 5


async def test_prompts_that_begin_alike_have_one_engine(cluster):
    for name in NAMES:
        cluster.add(name).max_model_len = 1024
    async with await AsyncService.connect(NAMES) as service:
        for tail in range(5):
            await last(service.generate([7] * 300 + [tail]))
        assert sorted(loads(cluster)) == [0, 0, 5]
        for first in range(60):
            await last(service.generate([first] * 300))
    assert min(loads(cluster)) > 5


async def test_what_an_engine_leaves_goes_on_at_another_at_once(cluster, service):
    task, lost, link = await begin(cluster, service)
    cluster.engines[lost].is_dead = True
    link.break_off()
    assert (await task).outputs[0].token_ids == [5, 6, 7]
    [again] = [each for name in NAMES if name != lost for each in asked(cluster, name)]
    assert again.known_output.tolist() == [5]


async def test_an_engine_that_is_back_is_used_again(cluster, service, caplog):
    caplog.set_level(logging.INFO)
    _, lost, link = await begin(cluster, service, session_id="mine")
    cluster.engines[lost].is_dead = True
    link.break_off()
    assert (await last(service.generate([3], None, session_id="mine"))).outputs[0].token_ids == [3]
    assert len(cluster.links_to(lost)) == 1

    cluster.engines[lost].is_dead = False
    await until(lambda: len(cluster.links_to(lost)) == 2)
    await last(service.generate([4], None, session_id="mine"))
    asked_again = cluster.links_to(lost)[1].sent_of(SubmitRequest)
    assert [each.token_ids.tolist() for each in asked_again] == [[4]]
    assert [each for each in caplog.messages if each.startswith(f"engine {lost} ")] == [
        f"engine {lost} is not reached any more; what it has left open goes on at any other",
        f"engine {lost} is used",
    ]


async def test_requests_wait_while_every_engine_may_come_back(cluster, service):
    task, _, _ = await begin(cluster, service)
    cluster.refuses_links = True
    for name in NAMES:
        cluster.links_to(name)[-1].break_off()
    client = service._connection._client
    await until(lambda: client.is_closed)
    assert not task.done()
    cluster.refuses_links = False
    assert (await task).outputs[0].token_ids == [5, 6, 7]
    assert client is await service.connected()


async def test_requests_fail_once_no_engine_is_left(cluster, service):
    task, _, _ = await begin(cluster, service)
    for name in NAMES:
        cluster.engines[name].is_dead = True
        cluster.links_to(name)[-1].break_off()
    with pytest.raises(EngineDead, match="Supervisor is gone"):
        await task


async def test_samples_share_an_engine(cluster, service):
    await last(service.generate([1, 2], {"n": 4}))
    assert sorted(loads(cluster)) == [0, 0, 4]


async def test_an_abort_reaches_the_engine_that_was_asked(cluster, service):
    task, name, link = await begin(cluster, service)
    await service.abort("r")
    assert (await task).outputs[0].finish_reason == "abort"
    assert len(link.sent_of(AbortRequest)) == 1
    others = [each for other in NAMES if other != name for each in cluster.links_to(other)]
    assert not any(each.sent_of(AbortRequest) for each in others)


async def test_the_model_is_named_by_an_engine_that_is_used(cluster):
    used = cluster.add("b")
    service = await AsyncService.connect(["a", "b"])
    other = cluster.add("a")
    other.fingerprint = other.model_path = "others"
    assert await service.model_path() == used.model_path
    await service.disconnect()


async def test_every_engine_hears_what_comes_next_of_a_session(cluster, service):
    await service.retain("mine", {"end": True})
    assert [len(link.sent_of(RetainSession)) for link in cluster.links] == [1, 1, 1]


async def test_control_calls_go_to_all_and_are_told_by_name(cluster, service):
    cluster.engines["b"].is_dead = True
    stats = {"method": "stats"}
    assert await service.stats() == {"a": stats, "b": None, "c": stats}
    assert await service.flush() == {"a": {"method": "flush"}, "b": None, "c": {"method": "flush"}}
    for name in "ac":
        cluster.engines[name].is_dead = True
    with pytest.raises(EngineDead, match="none of the engines a, b, c is there"):
        await service.stats()


async def test_a_request_is_explained_by_the_engine_that_knows_it(cluster, service):
    for name in NAMES:
        cluster.engines[name].known = {"r"} if name == "b" else set()
    assert await service.explain("r") == {"method": "explain"}
    with pytest.raises(UnknownRequest):
        await service.explain("unknown")


async def test_a_pickled_service_connects_by_names(cluster, service):
    copy = pickle.loads(pickle.dumps(service))
    assert (await last(copy.generate([1, 2]))).outputs[0].token_ids == [1, 2]
    await copy.disconnect()


async def test_one_engine_is_enough_to_begin_with(cluster, caplog):
    cluster.add("b")
    service = await AsyncService.connect(NAMES)
    assert [each.partition(":")[0] for each in caplog.messages] == [
        "engine a is not used",
        "engine c is not used",
    ]
    assert (await last(service.generate([1, 2]))).outputs[0].token_ids == [1, 2]
    cluster.add("a")
    await until(lambda: cluster.links_to("a"))
    await service.disconnect()
    with pytest.raises(EngineDead, match=r"none of the engines x, y is there\. .* no engine 'x'"):
        await AsyncService.connect(["x", "y"])


@pytest.mark.parametrize("engines", [[], "raydix", {}])
def test_names_that_are_none_are_refused(engines):
    with pytest.raises(BadRequest, match="expected the names"):
        AsyncService(engines)


async def test_requests_fail_once_those_that_are_left_have_other_weights(cluster, service):
    task, _, _ = await begin(cluster, service)
    for name in NAMES:
        if name == "b":
            cluster.engines[name].fingerprint = "others"
        else:
            cluster.engines[name].is_dead = True
    for name in NAMES:
        cluster.links_to(name)[-1].break_off()
    with pytest.raises(EngineDead):
        await asyncio.wait_for(task, 10)


async def test_an_engine_that_a_new_request_reaches_counts_as_there(cluster, service):
    _, name, link = await begin(cluster, service)
    connection = service._connection
    cluster.engines[name].is_dead = True
    link.break_off()
    [engine] = [each for each in connection.engines if each.name == name]
    await until(lambda: engine.failure is not None)
    cluster.engines[name].is_dead = False
    await connection._connect(connection.engines[NAMES.index(name)])
    assert engine.failure is None


async def test_an_engine_that_answers_nothing_may_answer_later(cluster, service, monkeypatch):
    monkeypatch.setattr(engine_connection, "_ANSWER_S", 0.01)
    for name in NAMES:
        cluster.engines[name].is_silent = True
    task, _, _ = await begin(cluster, service)
    for name in NAMES:
        cluster.links_to(name)[-1].break_off()
    client = service._connection._client
    await until(lambda: client.is_closed)
    await until(lambda: all(cluster.engines[name].num_unanswered for name in NAMES))
    assert not task.done()
    for name in NAMES:
        cluster.engines[name].is_silent = False
    assert (await asyncio.wait_for(task, 10)).outputs[0].token_ids == [5, 6, 7]
