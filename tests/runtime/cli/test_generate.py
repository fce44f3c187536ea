"""`raydix generate` against engines that are scripts."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from raydix.errors import RaydixError
from raydix.runtime.api.sampling_params import SamplingParams
from raydix.runtime.cli.engine_access import Where
from raydix.runtime.cli.generate import Asking, generate_all
from raydix.runtime.messages.client import FailureKind, FinishReason, SubmitRequest
from tests.hollow_checkpoint import make_hollow
from tests.runtime.api.fake_engine import FakeCluster, FakeLink, delta, echo, failed
from tests.runtime.api.small_tokenizers import byte_level_backend


def refuse_nines(link: FakeLink, message: Any) -> None:
    if isinstance(message, SubmitRequest) and message.token_ids.tolist() == [9]:
        link.deliver(failed(message.request_id, FailureKind.BAD_REQUEST, "no nines."))
    else:
        echo(link, message)


@pytest.fixture
def prompts(tmp_path: Path, cluster: FakeCluster) -> str:
    """A file of three prompts, of which an engine named mine refuses the second."""
    cluster.engines["mine"] = cluster.handle
    cluster.answer = refuse_nines
    path = tmp_path / "prompts.jsonl"
    path.write_text('"hello"\n[9]\n"you"\n')
    return str(path)


async def test_answers_keep_the_order_of_the_prompts(cluster: FakeCluster) -> None:
    cluster.engines["mine"] = cluster.handle
    prompts = [f"prompt {i}" for i in range(100)]
    async with await Where("mine").reach() as engine:
        asking = Asking(engine, SamplingParams(), as_chat=False)
        answers = [each async for each in generate_all(asking, prompts)]
    texts = [each.outputs[0].text for each in answers if not isinstance(each, RaydixError)]
    assert texts == prompts


@pytest.mark.parametrize("flags", [[], ["--stream"]])
def test_a_prompt_that_fails_is_named_and_the_others_are_answered(
    run: Callable[..., int], prompts: str, capsys: pytest.CaptureFixture[str], flags: list[str]
) -> None:
    assert run("generate", "--connect", "mine", "--prompts-file", prompts, *flags) == 1
    printed = capsys.readouterr()
    assert printed.out.splitlines() == ["hello", "you"]
    assert printed.err.splitlines() == [
        "prompt 1: BadRequest: no nines.",
        "1 of 3 prompts failed.",
    ]


@pytest.mark.parametrize("flags", [[], ["--stream"]])
def test_an_answer_is_printed_as_it_is(
    run: Callable[..., int],
    cluster: FakeCluster,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    flags: list[str],
) -> None:
    """The text is not broken at the terminal's edge, and has all its characters."""
    cluster.engines["mine"] = cluster.handle
    monkeypatch.setenv("COLUMNS", "20")
    text = "word " * 5 + "\x0c[bold]\x08\r."

    assert run("generate", "--connect", "mine", "--prompt", text, *flags) == 0

    assert capsys.readouterr().out == f"{text}\n"


def test_a_single_prompt_fails_by_its_own_error(
    run: Callable[..., int], cluster: FakeCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.engines["mine"] = cluster.handle
    assert run("generate", "--connect", "mine", "--prompt", "") == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("BadRequest: The prompt is empty")


@pytest.mark.parametrize("flags", [[], ["--stream"]])
def test_an_answer_that_the_context_cuts_is_told(
    run: Callable[..., int],
    cluster: FakeCluster,
    capsys: pytest.CaptureFixture[str],
    flags: list[str],
) -> None:
    cluster.engines["mine"] = cluster.handle
    assert run("generate", "--connect", "mine", "--prompt", "hi", "--max-tokens", "5", *flags) == 0
    assert capsys.readouterr().err == ""
    flags = ["--max-tokens", "100000", *flags]
    assert run("generate", "--connect", "mine", "--prompt", "hi", *flags) == 0
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("--max-tokens is 100000, but the context of ")


def test_json_has_a_line_for_each_prompt(
    run: Callable[..., int], prompts: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("generate", "--connect", "mine", "--prompts-file", prompts, "--json") == 1
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line.get("text") for line in lines] == ["hello", None, "you"]
    assert lines[1] == {"prompt": 1, "error": "BadRequest", "message": "no nines."}
    assert lines[0]["num_prompt_tokens"] == sum(lines[0]["cached_tokens_by_source"].values())


def test_a_stream_comes_in_pieces_that_join_to_the_answer(
    run: Callable[..., int], cluster: FakeCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    def answer_in_turns(link: FakeLink, message: Any) -> None:
        """A token at a time."""
        loop = asyncio.get_running_loop()
        for i in range(3):
            news = delta(
                message.request_id,
                [65 + i],
                asking=message.asking,
                finished=FinishReason.LENGTH if i == 2 else None,
            )
            loop.call_later(0.02 * i, link.deliver, news)

    cluster.engines["mine"] = cluster.handle
    cluster.answer = answer_in_turns
    flags = ("--stream", "--json")
    assert run("generate", "--connect", "mine", "--prompt", "hello", *flags) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["token_ids"] for line in lines] == [[65], [66], [67]]
    assert [line["finish_reason"] for line in lines] == [None, None, "length"]
    assert lines[-1]["num_prompt_tokens"] > 0


@pytest.mark.parametrize("flags", [[], ["--stream"]])
def test_a_character_of_several_tokens_is_printed_as_text(
    run: Callable[..., int],
    cluster: FakeCluster,
    capsys: pytest.CaptureFixture[str],
    flags: list[str],
) -> None:
    def answer_in_halves(link: FakeLink, message: Any) -> None:
        """The two bytes of é, one after the other."""
        first, second = byte_level_backend().encode("é")
        asking, length = message.asking, FinishReason.LENGTH
        link.deliver(delta(message.request_id, [first], asking=asking))
        last = delta(message.request_id, [second], asking=asking, finished=length)
        asyncio.get_running_loop().call_later(0.02, link.deliver, last)

    cluster.engines["mine"] = cluster.handle
    cluster.answer = answer_in_halves
    assert run("generate", "--connect", "mine", "--prompt", "caf", *flags) == 0
    assert capsys.readouterr().out == "é\n"


def test_a_stream_without_text_is_of_token_ids(
    run: Callable[..., int],
    cluster: FakeCluster,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    cluster.handle.model_path = str(tmp_path)
    cluster.engines["mine"] = cluster.handle
    path = tmp_path / "ids.jsonl"
    path.write_text("[5, 6, 7]\n")
    assert run("generate", "--connect", "mine", "--prompts-file", str(path), "--stream") == 0
    assert capsys.readouterr().out.split() == ["5", "6", "7"]


def test_the_routing_key_and_the_salt_go_with_every_request(cluster, run):
    cluster.engines["mine"] = cluster.handle
    prompts = ("--prompt", "a", "--prompt", "b")
    salt = ("--cache-salt", "s")
    assert run("generate", "--connect", "mine", *prompts, "--routing-key", "math", *salt) == 0
    assert [each.routing_key for each in cluster.links[0].sent] == ["math", "math"]
    assert [each.cache_salt for each in cluster.links[0].sent] == ["s", "s"]


@pytest.mark.parametrize(
    ("line", "flags"),
    [
        ('"text"', []),
        ('{"prompt": "text"}', []),
        ('{"messages": [{"role": "user", "content": "text"}]}', []),
        ('"text"', ["--chat"]),
    ],
)
def test_text_without_a_tokenizer_is_refused_before_an_engine_starts(
    run: Callable[..., int],
    cluster: FakeCluster,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    line: str,
    flags: list[str],
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    path = tmp_path / "prompts.jsonl"
    path.write_text(line)

    assert run("generate", str(model), "--prompts-file", str(path), *flags) == 1

    assert f"the checkpoint {model} has no tokenizer" in capsys.readouterr().err
    assert cluster.configs == []


@pytest.mark.parametrize("flags", [[], ["--chat"]])
def test_a_file_may_hold_conversations(
    run: Callable[..., int],
    cluster: FakeCluster,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    flags: list[str],
) -> None:
    cluster.engines["mine"] = cluster.handle
    path = tmp_path / "chats.jsonl"
    path.write_text('{"messages": [{"role": "user", "content": "he"}]}\n')

    assert run("generate", "--connect", "mine", "--prompts-file", str(path), *flags) == 0

    assert capsys.readouterr().out == "he\n"


def test_token_ids_need_no_tokenizer(
    run: Callable[..., int], cluster: FakeCluster, tmp_path: Path
) -> None:
    make_hollow(tmp_path)
    path = tmp_path / "prompts.jsonl"
    path.write_text("[1, 2]")
    assert run("generate", str(tmp_path), "--prompts-file", str(path)) == 0
