"""`raydix trace record` on a running engine: what it writes, and what a plan finds of it."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest

from raydix.errors import EngineDead
from raydix.runtime.api.recording import Recording
from raydix.runtime.cli.load.engine_sender import EngineSender
from raydix.runtime.cli.load.requests import Conversations
from raydix.runtime.cli.load.run import Usage
from raydix.runtime.cli.source_table import by_tier
from raydix.runtime.config.loading import load_config
from raydix.runtime.config.policies import EvictionPolicy
from raydix.runtime.foresight.plan.model_blocks import TokenBytes
from raydix.runtime.foresight.plan.planning import Question, Sizes, make_plan
from raydix.runtime.foresight.recorded import RecordedTrace
from raydix.runtime.foresight.traces import read_trace, write_rows
from raydix.runtime.testing.engine import in_process_engine
from raydix.runtime.testing.llm import InProcessLLM
from raydix.runtime.testing.sleeping_runner import build_sleeping_model
from tests.runtime.api.fake_engine import FakeCluster

Run = Callable[..., int]
Capture = pytest.CaptureFixture[str]
PAGE = 16
PART = {
    "name": "x",
    "block_tokens": PAGE,
    "requests": [],
    "hints": [],
    "num_unserved": 0,
    "num_dropped": 0,
}
REQUEST = {
    "arrival_s": 1.0,
    "end_s": 2.0,
    "num_prompt_tokens": 20,
    "num_answer_tokens": 3,
    "blocks": bytes(range(16)),
    "answer_blocks": b"",
    "session": b"12345678",
    "priority": 0,
    "retention": {"kind": "end", "seconds": 0.0},
}


class Recorder:
    """The calls of an engine that has something new each time, and ends if it is to."""

    def __init__(self, num_parts: int | None = None) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self._num_left = num_parts

    async def call(self, method: str, *arguments: Any) -> Any:
        self.calls.append((method, *arguments))
        if method == "begin_recording":
            return PART
        if self._num_left is not None:
            self._num_left -= 1
            if self._num_left < 0:
                raise EngineDead("it has given up")
        return {**PART, "requests": [REQUEST], "num_unserved": 1}


@pytest.fixture
def recorder(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> Recorder:
    recorder = Recorder()
    cluster.engines["raydix"] = cluster.handle
    monkeypatch.setattr(cluster.handle, "call", recorder.call)
    return recorder


def test_a_recording_ends_after_so_many_requests(
    run: Run, capsys: Capture, recorder: Recorder, tmp_path: Path
) -> None:
    path = tmp_path / "trace.jsonl.gz"
    arguments = ("--requests", "2", "--block-tokens", "32")
    assert run("trace", "record", "--out", str(path), *arguments) == 0
    assert recorder.calls[0] == ("begin_recording", 32)
    assert recorder.calls[-1] == ("end_recording", "x")
    assert len(read_trace(path, PAGE)) == 2
    printed = capsys.readouterr().out
    assert "2 requests, blocks of 16 tokens" in printed
    assert "3 requests ended before they had their turn; left out" in printed


@pytest.mark.parametrize("bound", [("--for", "0.01"), ("--max-size", "1KiB")])
def test_a_recording_ends_by_its_time_and_by_its_size(
    run: Run, recorder: Recorder, tmp_path: Path, bound: tuple[str, str]
) -> None:
    path = tmp_path / "trace.jsonl"
    assert run("trace", "record", "--out", str(path), *bound) == 0
    # An entry counts as 216 bytes: four of them are not enough, and the end brings one more.
    num_recorded = len(read_trace(path, PAGE))
    assert num_recorded == 6 if bound[0] == "--max-size" else num_recorded >= 2


@pytest.mark.parametrize("name", ["trace.jsonl", "trace.jsonl.gz"])
def test_no_file_is_left_where_nothing_was_asked(
    run: Run, capsys: Capture, cluster: FakeCluster, tmp_path: Path, name: str
) -> None:
    async def call(*_: Any) -> Any:
        return PART

    cluster.engines["raydix"] = cluster.handle
    cluster.handle.call = call
    path = tmp_path / name
    assert run("trace", "record", "--out", str(path), "--for", "0.01") == 0
    assert f"{path} was not written" in " ".join(capsys.readouterr().out.split())
    assert not path.exists()


def test_what_was_recorded_is_written_though_the_engine_ends(
    run: Run, capsys: Capture, recorder: Recorder, tmp_path: Path
) -> None:
    recorder._num_left = 2
    path = tmp_path / "trace.jsonl"
    assert run("trace", "record", "--out", str(path)) == 1
    printed = capsys.readouterr()
    assert "2 requests" in printed.out
    assert "it has given up" in printed.err
    assert [json.loads(line)["retention"] for line in path.read_text().splitlines()] == [
        {"end": True}
    ] * 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--for", "0"], "--for is 0.0; expected a number of seconds above 0"),
        (["--for", "nan"], "--for is nan"),
        (["--max-size", "0"], "--max-size is 0; expected a size above 0"),
        (["--max-size", "x"], "--max-size is 'x'"),
        (["--connect", "nobody"], "there is no engine"),
    ],
)
def test_what_makes_no_recording_is_refused_and_leaves_no_file(
    run: Run,
    capsys: Capture,
    recorder: Recorder,
    tmp_path: Path,
    arguments: list[str],
    words: str,
) -> None:
    path = tmp_path / "trace.jsonl"
    assert run("trace", "record", "--out", str(path), *arguments) == 1
    assert words in capsys.readouterr().err
    assert not path.exists()


def test_a_file_that_cannot_be_written_is_told_before_anything_is_recorded(
    run: Run, capsys: Capture, recorder: Recorder, tmp_path: Path
) -> None:
    assert run("trace", "record", "--out", str(tmp_path / "none" / "trace.jsonl")) == 1
    assert "cannot be written" in capsys.readouterr().err
    assert recorder.calls == []


async def serve(generating: InProcessLLM, load: Conversations, streams: int) -> Counter[str]:
    """Send conversations by a few streams; the prompts' tokens by source, as the engine counts."""
    sender = EngineSender(generating, repeat("a salt"))  # type: ignore[arg-type]
    counted: Counter[str] = Counter()
    requests = load.requests()

    async def stream(first: int) -> None:
        for request in requests[first::streams]:
            async for each in sender.stream(request):
                if isinstance(each, Usage):
                    counted.update(each.tokens_by_source or {})

    await asyncio.gather(*map(stream, range(streams)))
    return counted


@pytest.mark.parametrize(("num_pages", "output_tokens"), [(96, 4), (400, 4), (96, 40), (150, 40)])
async def test_a_recording_replanned_has_the_hits_that_the_engine_counted(
    tmp_path: Path, num_pages: int, output_tokens: int
) -> None:
    config = load_config(
        {
            "model": {"path": "none", "max_model_len": 1024},
            "cache": {"page_size": PAGE, "l1": {"num_pages": num_pages}, "l2": None},
        }
    )
    load = Conversations(
        num_conversations=9,
        num_turns=6,
        prompt_tokens=100,
        turn_tokens=30,
        output_tokens=output_tokens,
    )
    async with in_process_engine(config, partial(build_sleeping_model, step_s=0.0)) as engine:
        recording = Recording(engine.call, await engine.call("begin_recording", None))
        trace = RecordedTrace(recording.block_tokens)
        counted = by_tier(await serve(InProcessLLM(engine, engine.client), load, streams=1))
        trace.add(await recording.take())
        trace.add(await recording.end())
        assert trace.num_unserved == trace.num_dropped == 0

    path = tmp_path / "trace.jsonl.gz"
    write_rows(path, trace.rows())
    requests = read_trace(path, PAGE)
    assert sum(each.num_tokens for each in requests) == sum(counted.values())
    question = Question(requests=requests, block_tokens=PAGE, eviction=EvictionPolicy.LRU)
    # A page is padding.
    l1 = TokenBytes(token_bytes=1, block_tokens=PAGE).l1(PAGE * (num_pages - 1))
    [point] = make_plan(question, Sizes(l1=[l1], l2=[], l3=[])).points
    found = 100 * counted["l1"] / sum(counted.values())
    assert 2 < found < 80
    assert point.lru == pytest.approx(found, abs=0.1)
