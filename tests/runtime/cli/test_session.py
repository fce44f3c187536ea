import json

import pytest

from raydix.errors import BadRequest
from raydix.runtime.api.sampling_params import SamplingParams
from raydix.runtime.cli import session
from raydix.runtime.cli.session import generate_all, open_engine, read_prompts
from raydix.runtime.config.loading import load_config
from tests.runtime.api.fake_engine import FakeCluster
from tests.runtime.api.small_tokenizers import byte_level_backend


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoint")
    byte_level_backend().save_pretrained(folder)
    return str(folder)


@pytest.fixture
def cluster(checkpoint, monkeypatch):
    cluster = FakeCluster(checkpoint)
    cluster.install(monkeypatch)
    return cluster


async def test_an_engine_for_one_command_does_not_take_the_name_of_one_that_stays_up(
    cluster, checkpoint
):
    names = []
    for _ in range(2):
        async with open_engine(load_config(checkpoint), None, None) as engine:
            names.append(engine.name)
    assert len({*names, "raydix"}) == 3
    assert cluster.handle.is_shut_down


async def test_a_running_engine_is_reached_and_goes_on(cluster):
    cluster.engines["mine"] = cluster.handle
    async with open_engine(None, "mine", None) as engine:
        assert engine.name == "mine"
    assert not cluster.handle.is_shut_down


async def test_answers_keep_the_order_of_the_prompts(cluster):
    cluster.engines["mine"] = cluster.handle
    prompts = [f"prompt {i}" for i in range(100)]
    async with open_engine(None, "mine", None) as engine:
        answers = [
            each async for each in generate_all(engine, prompts, SamplingParams(), as_chat=False)
        ]
    assert [answer["text"] for answer in answers] == prompts
    assert all(
        sum(answer["cached_tokens_by_source"].values()) in (0, answer["num_prompt_tokens"])
        for answer in answers
    )


def test_prompts_come_from_the_command_line_and_then_from_the_file(tmp_path):
    lines, objects = tmp_path / "prompts.txt", tmp_path / "prompts.jsonl"
    lines.write_text("one\n\ntwo\n")
    objects.write_text(
        json.dumps("one")
        + "\n"
        + json.dumps([1, 2])
        + "\n"
        + json.dumps({"prompt": "three"})
        + "\n"
    )
    assert read_prompts(["zero"], lines) == ["zero", "one", "two"]
    assert read_prompts([], objects) == ["one", [1, 2], {"prompt": "three"}]


@pytest.mark.parametrize("content", [None, b"[1,\n", b"\xff\xfe\n", b""])
def test_a_file_without_readable_prompts_is_a_bad_request(tmp_path, content):
    path = tmp_path / "prompts.jsonl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BadRequest, match="--prompts-file"):
        read_prompts([], path)


@pytest.mark.parametrize(("content", "what"), [("", "no prompt"), ("[1,", "prompts.jsonl")])
async def test_a_file_without_prompts_is_not_prefetched(tmp_path, content, what):
    path = tmp_path / "prompts.jsonl"
    path.write_text(content)
    with pytest.raises(BadRequest, match=what):
        await session.cache_prefetch("raydix", None, path)


@pytest.mark.parametrize("breaker", ["closed", "none"])
async def test_a_file_is_prefetched_if_there_is_an_l3(cluster, tmp_path, monkeypatch, breaker):
    async def call(method):
        assert method == "stats"
        return {"host": {"l3_breaker": breaker}}

    monkeypatch.setattr(cluster.handle, "call", call)
    cluster.engines["mine"] = cluster.handle
    path = tmp_path / "prompts.txt"
    path.write_text("one\nfour\n")
    if breaker == "closed":
        assert await session.cache_prefetch("mine", None, path) == [{"l3": 3}, {"l3": 4}]
        return
    with pytest.raises(BadRequest, match="cache attach"):
        await session.cache_prefetch("mine", None, path)
