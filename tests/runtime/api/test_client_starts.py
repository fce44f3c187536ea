"""`AsyncLLM.start`: what it starts, and that a start which fails or is cancelled leaves nothing."""

import asyncio
import concurrent.futures
import itertools
import json
import shutil
import threading

import pytest

from raydix.errors import CheckpointError, ConfigError, EngineDead
from raydix.runtime.api.client import AsyncLLM
from tests.hollow_checkpoint import make_hollow


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


async def test_a_start_that_is_cancelled_at_whatever_step_leaves_no_engine(
    cluster, checkpoint, monkeypatch
):
    def run_now(_name, work, *arguments, **options):
        done = concurrent.futures.Future()
        done.set_result(work(*arguments, **options))
        return done

    monkeypatch.setattr("raydix.runtime.api.engine_start.on_thread", run_now)
    for num_steps in itertools.count():
        cluster.handle.is_shut_down = False
        cluster.engines.clear()
        task = asyncio.create_task(AsyncLLM.start(checkpoint))
        for _ in range(num_steps):
            await asyncio.sleep(0)
        if task.done():
            break
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()
        assert cluster.handle.is_shut_down or not cluster.engines
    await task.result().shutdown()
    assert num_steps > 2


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
    quantised = {"model_type": "llama", "quantization_config": {"quant_method": "bitsandbytes"}}
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
