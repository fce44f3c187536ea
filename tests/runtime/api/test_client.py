import asyncio
import gc
import json
import pickle
import shutil
import threading

import pytest

from raydix.errors import (
    BadRequest,
    Cancelled,
    CheckpointError,
    ConfigError,
    EngineDead,
    UnknownRequest,
)
from raydix.runtime.api.client import AsyncLLM
from raydix.runtime.messages.client import AbortRequest, SubmitRequest
from tests.hollow_checkpoint import make_hollow
from tests.runtime.api.fake_engine import FakeCluster, FakeHandle, delta, echo
from tests.runtime.api.small_tokenizers import byte_level_backend


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoint")
    byte_level_backend().save_pretrained(folder)
    return str(make_hollow(folder))


@pytest.fixture
def cluster(checkpoint, monkeypatch):
    cluster = FakeCluster(checkpoint)
    cluster.install(monkeypatch)
    return cluster


def never(link, message):
    """An engine that takes requests and says nothing."""


async def last(outputs):
    return [each async for each in outputs][-1]


async def test_start_makes_an_engine_of_folder_and_sections(cluster, checkpoint):
    engine = await AsyncLLM.start(checkpoint, name="mine", address="here", cache={"page_size": 32})
    ((config, address),) = cluster.configs
    assert (str(config.model.path), config.cache.page_size, address) == (checkpoint, 32, "here")
    output = await last(engine.generate("hello", {"temperature": 0}))
    assert (output.prompt, output.outputs[0].text, output.finished) == ("hello", "hello", True)
    await engine.shutdown()
    assert cluster.handle.is_shut_down


async def test_engines_that_are_given_no_name_have_names_of_their_own(cluster, checkpoint):
    async with await AsyncLLM.start(checkpoint) as one, await AsyncLLM.start(checkpoint) as other:
        assert len({one.name, other.name, "raydix"}) == 3


async def test_a_wrong_configuration_starts_nothing(cluster, checkpoint):
    with pytest.raises(ConfigError):
        await AsyncLLM.start(checkpoint, cash={})
    assert cluster.configs == []


async def test_an_engine_that_cannot_be_reached_is_shut_down_again(cluster, checkpoint):
    cluster.refuses_links = True
    with pytest.raises(EngineDead, match="nobody listens"):
        await AsyncLLM.start(checkpoint)
    assert cluster.handle.is_shut_down


async def test_a_start_that_is_cancelled_is_taken_back(cluster, checkpoint, monkeypatch):
    is_starting, may_go_on = threading.Event(), threading.Event()

    def start_slowly(config, name, address, supervision, gateway, control):
        is_starting.set()
        may_go_on.wait(5)
        return cluster.handle

    monkeypatch.setattr("raydix.runtime.api.engine_start.start_engine", start_slowly)
    task = asyncio.create_task(AsyncLLM.start(checkpoint))
    await asyncio.to_thread(is_starting.wait, 5)
    task.cancel()
    await asyncio.sleep(0)
    may_go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert cluster.handle.is_shut_down


async def test_a_start_that_is_cancelled_is_called_off_and_waited_for(checkpoint, monkeypatch):
    is_starting, is_undone = threading.Event(), threading.Event()

    def start_for_ever(config, name, address, supervision, gateway, control):
        is_starting.set()
        try:
            while True:
                control.check()
        finally:
            is_undone.set()

    monkeypatch.setattr("raydix.runtime.api.engine_start.start_engine", start_for_ever)
    task = asyncio.create_task(AsyncLLM.start(checkpoint))
    await asyncio.to_thread(is_starting.wait, 5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert is_undone.is_set()


async def test_a_broken_tokenizer_is_told_before_the_engine_starts(cluster, checkpoint, tmp_path):
    folder = tmp_path / "broken"
    shutil.copytree(checkpoint, folder)
    (folder / "tokenizer.json").write_text('{"model": 1')
    with pytest.raises(CheckpointError, match=f"The tokenizer in {folder} cannot be loaded"):
        await AsyncLLM.start(str(folder))
    assert cluster.configs == []


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("absent", "not a folder"),
        ("", "config.json"),
        ("torn", "cannot be read as JSON"),
        ("unknown", "says model_type 'mamba2'"),
        ("quantised", "is quantised"),
        ("hollow", "holds no weights"),
    ],
)
async def test_what_cannot_be_served_is_told_before_anything_starts(
    cluster, tmp_path, caplog, name, message
):
    quantised = {"model_type": "llama", "quantization_config": {"quant_method": "awq"}}
    for each, text in (
        ("torn", "{"),
        ("unknown", json.dumps({"model_type": "mamba2"})),
        ("quantised", json.dumps(quantised)),
        ("hollow", json.dumps({"model_type": "llama"})),
    ):
        (tmp_path / each).mkdir()
        (tmp_path / each / "config.json").write_text(text)

    with pytest.raises(CheckpointError, match=message):
        await AsyncLLM.start({"model": {"path": str(tmp_path / name)}})
    assert (cluster.configs, caplog.records) == ([], [])


async def test_a_start_without_a_tokenizer_is_warned_of_and_serves_ids(cluster, tmp_path, caplog):
    make_hollow(tmp_path)
    async with await AsyncLLM.start(str(tmp_path)) as engine:
        assert (await last(engine.generate([1, 2]))).outputs[0].token_ids == [1, 2]
    [warning] = [each for each in caplog.records if each.levelname == "WARNING"]
    assert f"the checkpoint {tmp_path} has no tokenizer" in warning.getMessage()


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


async def test_after_a_lost_link_the_next_request_connects_anew(cluster):
    cluster.engines["raydix"] = cluster.handle
    cluster.answer = never
    engine = await AsyncLLM.connect()
    task = asyncio.create_task(last(engine.generate([1], None, "r")))
    while not cluster.links[0].sent_of(SubmitRequest):
        await asyncio.sleep(0)
    cluster.links[0].break_off()
    with pytest.raises(EngineDead):
        await task
    cluster.answer = echo
    assert (await last(engine.generate([3]))).outputs[0].token_ids == [3]
    assert len(cluster.links) == 2
    await engine.disconnect()


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
        await asyncio.wait({asking}, timeout=0.01)

    asyncio.run(ask())
    assert len(cluster.links[0].sent_of(SubmitRequest)) == 1
    assert cluster.links[0].is_closed


async def test_a_handle_that_is_in_use_is_refused_on_another_loop(cluster):
    cluster.engines["raydix"] = cluster.handle
    engine = await AsyncLLM.connect()
    for work in (lambda: last(engine.generate([4])), engine.disconnect):
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
    while not engine._client.is_closed:
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
        UnknownRequest, match=r"'r' is not among the last 1,024.* what follows cmpl-"
    ):
        await AsyncLLM().explain("r")
