"""Workloads from files."""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.records.record import REPOSITORY
from raydix.errors import BadRequest
from raydix.runtime.cli.load.requests import BlockPrompt, ChatPrompt, LoadRequest, infinite_share
from raydix.runtime.cli.load.traces import read_requests

TRACE = REPOSITORY / "benchmarks" / "traces" / "conversation.jsonl.gz"


def read(path: Path, *lines: object) -> tuple[LoadRequest, ...]:
    path.write_text("\n".join(map(json.dumps, lines)))
    return read_requests(path, output_tokens=9, block_tokens=512, max_requests=None)


def test_the_conversation_trace_is_read_with_its_arrivals_lengths_and_blocks() -> None:
    requests = read_requests(TRACE, output_tokens=9, block_tokens=512, max_requests=300)
    with gzip.open(TRACE, "rt") as file:
        lines = [json.loads(next(file)) for _ in range(300)]

    assert [each.arrival_s for each in requests] == [each["timestamp"] / 1000 for each in lines]
    assert [each.output_tokens for each in requests] == [each["output_length"] for each in lines]
    for request, line in zip(requests[:20], lines[:20], strict=True):
        assert isinstance(request.prompt, BlockPrompt)
        assert len(request.prompt.token_ids()) == line["input_length"]
        assert request.prompt.block_ids == tuple(line["hash_ids"])


def test_a_trace_is_utf_8_whatever_the_locale_and_may_begin_with_a_byte_order_mark(
    tmp_path: Path,
) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_bytes('\ufeff"Größe"\r\n"zwei"\r\n'.encode())
    code = (
        "import sys; from pathlib import Path; "
        "from raydix.runtime.cli.load.traces import read_requests; "
        "print([ascii(each.prompt) for each in read_requests(Path(sys.argv[1]), 9, 512, None)])"
    )
    not_utf_8 = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}

    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], env=not_utf_8, capture_output=True, text=True
    )

    assert (done.stdout, done.stderr) == (f"{[ascii('Größe'), ascii('zwei')]}\n", "")


def test_smaller_blocks_shrink_prompts_and_outputs_alike() -> None:
    [whole, *_] = read_requests(TRACE, output_tokens=9, block_tokens=512, max_requests=1)
    [small, *_] = read_requests(TRACE, output_tokens=9, block_tokens=16, max_requests=1)
    assert isinstance(whole.prompt, BlockPrompt)
    assert isinstance(small.prompt, BlockPrompt)
    assert len(small.prompt.token_ids()) == whole.prompt.num_tokens // 32
    assert small.output_tokens == max(1, whole.output_tokens // 32)


def test_lines_may_hold_prompts_of_any_shape(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    text, ids, timed, long, chat = read(
        tmp_path / "prompts.jsonl",
        "Hello",
        [1, 2, 3],
        {"prompt": "Hello", "timestamp": 1500},
        {"prompt_token_ids": [4, 5], "max_tokens": 70},
        {"messages": messages, "output_tokens": 3},
    )
    assert (text.prompt, text.output_tokens) == ("Hello", 9)
    assert ids.prompt == [1, 2, 3]
    assert timed.arrival_s == 1.5
    assert long.output_tokens == 70
    assert chat.prompt == ChatPrompt(messages=tuple(messages))


@pytest.mark.parametrize(
    "line",
    [
        {"text": "Hello"},
        7,
        {"hash_ids": [1]},
        {"prompt": [1, "a"]},
        {"prompt": "x", "timestamp": "?"},
    ],
)
def test_a_line_that_is_no_request_is_told_by_its_number(tmp_path: Path, line: object) -> None:
    with pytest.raises(BadRequest, match="line 2"):
        read(tmp_path / "prompts.jsonl", "Hello", line)


def test_files_without_requests_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="holds no request"):
        read(tmp_path / "empty.jsonl")
    (tmp_path / "text.jsonl").write_text("Hello")
    for name, words in (("text.jsonl", "no JSON"), ("missing.jsonl", "No such file")):
        with pytest.raises(BadRequest, match=words):
            read_requests(tmp_path / name, output_tokens=1, block_tokens=16, max_requests=None)


def test_turns_of_a_session_follow_each_other_after_their_pause(tmp_path: Path) -> None:
    rows = [
        {"timestamp": 0, "session_id": "a", "delay": 0, "hash_ids": [1, 2]},
        {"timestamp": 500, "session_id": "b", "delay": 0, "hash_ids": [1, 3]},
        {"timestamp": 9000, "session_id": "a", "delay": 2500, "hash_ids": [1, 2, 4]},
    ]
    path = tmp_path / "agents.jsonl"
    lines = [json.dumps({**row, "input_length": 1024, "output_length": 5}) for row in rows]
    path.write_text("\n".join(lines))

    first, other, second = read_requests(path, 16, 512, None)

    assert (first.after, first.pause_s, first.next_pause_s) == (None, 0.0, 2.5)
    assert (second.after, second.pause_s, second.arrival_s) == (0, 2.5, 0.0)
    assert (first.hint, second.hint, other.hint) == (
        {"resume_in_s": 2.5},
        {"end": True},
        {"end": True},
    )
    assert infinite_share([first, other, second]) == pytest.approx((512 + 1024) / 3072)
