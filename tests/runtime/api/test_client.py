import asyncio
import gc
import pickle

import pytest

from raydix.errors import (
    BadParameter,
    BadRequest,
    Cancelled,
    EngineDead,
    UnknownRequest,
)
from raydix.runtime.api.client import AsyncLLM
from raydix.runtime.messages.client import AbortRequest, PrefetchPrompt, SubmitRequest
from tests.runtime.api.fake_engine import FakeHandle, delta


def never(link, message):
    """An engine that takes requests and says nothing."""


async def last(outputs):
    return [each async for each in outputs][-1]


async def test_connect_reaches_a_running_engine_and_leaves_it_running(cluster):
    cluster.engines["mine"] = cluster.handle
    async with await AsyncLLM.connect("mine") as engine:
        assert (await last(engine.generate([1, 2]))).outputs[0].token_ids == [1, 2]
    assert cluster.links[0].is_closed
    assert not cluster.handle.is_shut_down


async def test_connect_to_nothing_is_engine_dead(cluster):
    with pytest.raises(EngineDead, match="no engine 'absent'"):
        await AsyncLLM.connect("absent")


async def test_the_block_of_a_started_engine_shuts_it_down(cluster, checkpoint):
    async with await AsyncLLM.start(checkpoint):
        assert not cluster.handle.is_shut_down
    assert cluster.handle.is_shut_down


@pytest.mark.parametrize("l3", ["false", "yes", 1, None])
async def test_a_flush_is_told_what_to_drop_by_true_or_false(cluster, checkpoint, l3):
    async with await AsyncLLM.start(checkpoint) as engine:
        with pytest.raises(BadRequest, match="expected True or False"):
            await engine.flush(l3)


async def test_an_engine_may_be_shut_down_twice(cluster, checkpoint):
    async with await AsyncLLM.start(checkpoint) as engine:
        await asyncio.gather(engine.shutdown(), engine.shutdown())
        cluster.engines.clear()
        await engine.shutdown()
    with pytest.raises(EngineDead, match="there is no engine"):
        await engine.stats()


async def test_a_pickled_handle_connects_by_name(cluster, checkpoint):
    engine = await AsyncLLM.start(checkpoint, name="mine", address="here")
    copy = pickle.loads(pickle.dumps(engine))
    assert (copy.name, copy.place.cluster) == ("mine", "here")
    assert (await last(copy.generate([1, 2]))).outputs[0].token_ids == [1, 2]
    async with copy:
        pass
    assert not cluster.handle.is_shut_down
    await engine.shutdown()


async def test_requests_that_start_together_share_one_connection(cluster):
    cluster.engines["raydix"] = cluster.handle
    engine = AsyncLLM()
    await asyncio.gather(*(last(engine.generate([each])) for each in range(5)))
    assert len(cluster.links) == 1
    await engine.disconnect()


def test_a_handle_survives_its_event_loop(cluster):
    cluster.engines["raydix"] = cluster.handle
    engine = asyncio.run(AsyncLLM.connect())
    assert asyncio.run(last(engine.generate([4]))).outputs[0].token_ids == [4]
    assert len(cluster.links) == 2


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("is_closed", [True, False])
def test_a_handle_leaves_a_loop_that_ended_without_it(cluster, is_closed):
    cluster.engines["raydix"] = cluster.handle
    former = asyncio.new_event_loop()
    engine = former.run_until_complete(AsyncLLM.connect())
    if is_closed:
        former.close()

    assert asyncio.run(last(engine.generate([4]))).outputs[0].token_ids == [4]
    assert cluster.links[0].is_closed
    asyncio.run(engine.disconnect())
    if not is_closed:
        former.run_until_complete(engine.disconnect())
        former.close()
    # What the former loop had left complains when it is collected: not in a later test.
    cluster.links.clear()
    del engine
    gc.collect()


def test_the_end_of_a_loop_ends_its_requests_in_the_engine(cluster):
    cluster.engines["raydix"] = cluster.handle
    cluster.answer = never
    engine = AsyncLLM()

    async def ask():
        asking = asyncio.create_task(last(engine.generate([1])))
        async with asyncio.timeout(5):
            while not (cluster.links and cluster.links[0].sent):
                await asyncio.sleep(0)
        assert not asking.done()

    asyncio.run(ask())
    assert len(cluster.links[0].sent_of(SubmitRequest)) == 1
    assert cluster.links[0].is_closed


async def test_a_handle_that_is_in_use_is_refused_on_another_loop(cluster):
    cluster.engines["raydix"] = cluster.handle
    engine = await AsyncLLM.connect()
    for work in (
        lambda: last(engine.generate([4])),
        lambda: engine.abort("r"),
        engine.disconnect,
    ):
        with pytest.raises(BadRequest, match="in use on another event loop"):
            await asyncio.to_thread(asyncio.run, work())
    assert (await last(engine.generate([4]))).outputs[0].token_ids == [4]
    await engine.disconnect()


async def test_break_aborts_through_all_layers(cluster):
    def first_token(link, message):
        if isinstance(message, SubmitRequest):
            link.deliver(delta(message.request_id, [7]))

    cluster.engines["raydix"] = cluster.handle
    cluster.answer = first_token
    engine = await AsyncLLM.connect()
    async for _ in engine.generate([1, 2, 3], None, "r"):
        break
    for _ in range(10):
        await asyncio.sleep(0)
    assert cluster.links[0].sent_of(AbortRequest) == [AbortRequest(asking=1, request_id="r")]
    await engine.disconnect()


async def test_disconnecting_cancels_open_streams(cluster):
    cluster.engines["raydix"] = cluster.handle
    cluster.answer = never
    engine = await AsyncLLM.connect()
    task = asyncio.create_task(last(engine.generate([1])))
    while not cluster.links[0].sent_of(SubmitRequest):
        await asyncio.sleep(0)
    await engine.disconnect()
    with pytest.raises(Cancelled):
        await task


async def test_chat_uses_the_template(cluster):
    cluster.engines["raydix"] = cluster.handle
    engine = await AsyncLLM.connect()
    output = await last(
        engine.chat([{"role": "user", "content": "he"}], {"skip_special_tokens": False}, priority=1)
    )
    assert output.outputs[0].text == "<|user|>he<|end|><|assistant|>"
    assert cluster.links[0].sent_of(SubmitRequest)[0].priority == 1
    await engine.disconnect()


async def test_generation_and_prefetches_take_conversations_too(cluster):
    cluster.engines["raydix"] = cluster.handle
    engine = await AsyncLLM.connect()
    prompt = {"messages": [{"role": "user", "content": "he"}]}
    params = {"skip_special_tokens": False}
    token_ids = await engine.apply_chat_template(prompt["messages"])

    output = await last(engine.generate(prompt, params))
    await engine.prefetch(prompt)
    continued = {**prompt, "chat_template_kwargs": {"add_generation_prompt": False}}
    without = await last(engine.generate(continued, params))

    assert output.outputs[0].text == "<|user|>he<|end|><|assistant|>"
    [prefetch] = cluster.links[0].sent_of(PrefetchPrompt)
    assert prefetch.token_ids.tolist() == token_ids
    assert without.outputs[0].text == "<|user|>he<|end|>"
    await engine.disconnect()


async def test_chat_without_a_tokenizer_is_a_bad_request(cluster, tmp_path):
    cluster.handle.model_path = str(tmp_path)
    cluster.engines["raydix"] = cluster.handle
    engine = await AsyncLLM.connect()
    with pytest.raises(BadRequest, match="chat needs one"):
        await last(engine.chat([{"role": "user", "content": "he"}]))
    await engine.disconnect()


async def test_abort_by_id(cluster):
    cluster.engines["raydix"] = cluster.handle
    cluster.answer = never
    engine = await AsyncLLM.connect()
    task = asyncio.create_task(last(engine.generate([1], None, "r")))
    while not cluster.links[0].sent_of(SubmitRequest):
        await asyncio.sleep(0)
    await engine.abort("r")
    assert cluster.links[0].sent_of(AbortRequest) == [AbortRequest(asking=1, request_id="r")]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await engine.disconnect()


async def test_after_the_end_of_an_engine_the_next_one_of_its_name_is_called(cluster, checkpoint):
    cluster.engines["raydix"] = cluster.handle
    engine = AsyncLLM()
    await engine.stats()
    cluster.handle.is_dead = True
    with pytest.raises(EngineDead):
        await engine.stats()

    successor = cluster.engines["raydix"] = FakeHandle(checkpoint)
    await engine.stats()
    assert successor.calls == [("stats",)]


async def test_an_engine_that_cannot_be_reached_is_looked_for_again(cluster, checkpoint):
    cluster.engines["raydix"] = cluster.handle
    cluster.refuses_links = True
    engine = AsyncLLM()
    with pytest.raises(EngineDead, match="nobody listens"):
        await last(engine.generate([1]))

    cluster.refuses_links = False
    cluster.engines["raydix"] = FakeHandle(checkpoint, vocab_size=2)
    with pytest.raises(BadRequest):
        await last(engine.generate([5]))
    await engine.disconnect()


async def test_who_started_an_engine_that_is_gone_hears_so_without_waiting_for_a_link(
    cluster, checkpoint
):
    engine = await AsyncLLM.start(checkpoint)
    cluster.links[0].break_off()
    cluster.handle.is_dead = True
    while not engine._connection._client.is_closed:
        await asyncio.sleep(0)
    with pytest.raises(EngineDead, match="Supervisor is gone"):
        await last(engine.generate([1]))
    assert len(cluster.links) == 1
    await engine.shutdown()


async def test_control_calls_go_to_the_engine(cluster):
    cluster.engines["raydix"] = cluster.handle
    engine = AsyncLLM()
    await engine.stats()
    await engine.flush(l3=True)
    await engine.explain("r")
    assert cluster.handle.calls == [("stats",), ("flush", True), ("explain", "r")]


async def test_a_request_that_the_engine_does_not_remember_cannot_be_explained(
    cluster, monkeypatch
):
    async def call(method, request_id):
        assert (method, request_id) == ("explain", "r")

    monkeypatch.setattr(cluster.handle, "call", call)
    cluster.engines["raydix"] = cluster.handle
    with pytest.raises(
        UnknownRequest, match=r"'r' is not among the last 1,024.* the id of an HTTP answer"
    ):
        await AsyncLLM().explain("r")


@pytest.mark.parametrize("given", [5, [], "n", {5: 6}, {"messages": []}])
async def test_template_variables_that_are_none_are_refused(given):
    with pytest.raises(BadParameter, match="expected a dict of the template's variables"):
        await anext(AsyncLLM("nowhere").chat([], chat_template_kwargs=given))
