"""Traces of any block size are read as they are, and what is none is refused by its line."""

import gzip
import json
from itertools import pairwise
from pathlib import Path

import pytest

from raydix.errors import BadRequest
from raydix.runtime.foresight.traces import read_trace, write_trace
from raydix.runtime.foresight.workloads import Shape, make_trace


def row(at_ms: int, num_tokens: int, ids: list[object], **more: object) -> dict[str, object]:
    return {
        "timestamp": at_ms,
        "input_length": num_tokens,
        "output_length": 6,
        "hash_ids": ids,
        **more,
    }


def write(path: Path, rows: list[dict[str, object]]) -> Path:
    text = "".join(json.dumps(each) + "\n" for each in rows)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return path


@pytest.mark.parametrize("name", ["trace.jsonl", "trace.jsonl.gz"])
def test_blocks_of_any_size_and_names_are_read(tmp_path: Path, name: str) -> None:
    rows = [row(0, 40, ["a", "b", "c"]), row(1500, 32, ["a", "b"])]
    first, second = read_trace(write(tmp_path / name, rows), block_tokens=16)
    assert first.blocks == second.blocks == (0, 1)
    assert (first.partial_block, second.partial_block) == (2, None)
    assert second.arrival_s == 1.5
    assert first.next_s == 1.5, "the second goes on with what the first began"


def test_sessions_are_those_that_are_named(tmp_path: Path) -> None:
    rows = [row(at, 16, [at], session_id=name) for at, name in enumerate("xyx")]
    requests = read_trace(write(tmp_path / "trace.jsonl", rows), block_tokens=16)
    assert [request.session for request in requests] == [1, 2, 1]
    assert [request.next_s for request in requests] == [0.002, None, None]


def test_a_wrong_block_size_is_told_with_the_line(tmp_path: Path) -> None:
    path = write(tmp_path / "trace.jsonl", [row(0, 512, [1]), row(1, 1024, [1])])
    with pytest.raises(BadRequest, match=r"line 2 has 1 hash_ids for 1024 tokens; expected 2"):
        read_trace(path)


@pytest.mark.parametrize("text", ["{", "[]", '{"timestamp": 1}', "3"])
def test_what_is_no_trace_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(text)
    with pytest.raises(BadRequest, match="line 1"):
        read_trace(path)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"timestamp": "12"}, "timestamp is '12'"),
        ({"timestamp": float("nan")}, "timestamp is nan"),
        ({"input_length": "512"}, "input_length is '512'"),
        ({"input_length": -5, "hash_ids": []}, "input_length is -5"),
        ({"output_length": True}, "output_length is True"),
        ({"hash_ids": "a"}, "hash_ids is no list"),
        ({"hash_ids": [[1]]}, "hash_ids is no list"),
    ],
)
def test_a_field_that_is_no_such_value_is_told_with_its_line(
    tmp_path: Path, more: dict[str, object], words: str
) -> None:
    path = tmp_path / "trace.jsonl"
    wrong = json.dumps(row(1, 512, [1]) | more)
    path.write_text(json.dumps(row(0, 512, [1])) + "\n\n" + wrong)
    with pytest.raises(BadRequest, match=f"line 3: {words}.*expected an object with timestamp"):
        read_trace(path)


def test_a_missing_or_empty_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="cannot be read"):
        read_trace(tmp_path / "none.jsonl")
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    with pytest.raises(BadRequest, match="holds no request"):
        read_trace(empty)


def test_a_damaged_compressed_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl.gz"
    path.write_bytes(gzip.compress(b"")[:10] + b"\xff" * 20)
    with pytest.raises(BadRequest, match="cannot be read"):
        read_trace(path)


@pytest.mark.parametrize("name", ["made.jsonl", "made.jsonl.gz"])
def test_what_is_written_is_read_again(tmp_path: Path, name: str) -> None:
    made = make_trace(Shape(num_sessions=4, mean_turns=3.0, child_fraction=0.2), seed=5)
    made.sort(key=lambda request: request.arrival_s)
    path, again = tmp_path / name, tmp_path / f"again_{name}"
    write_trace(path, made)
    write_trace(again, made)
    assert path.read_bytes() == again.read_bytes()
    if path.suffix == ".gz":
        assert path.read_bytes()[4:8] == bytes(4), "no time is in it"

    found = read_trace(path)
    assert len(found) == len(made)
    names: dict[int, int] = {}
    for one, other in zip(made, found, strict=True):
        assert other.num_tokens == one.num_tokens
        assert other.arrival_s == pytest.approx(one.arrival_s, abs=1e-5)
        assert other.end_s == pytest.approx(one.end_s, abs=1e-5)
        assert (other.partial_block is None) == (one.partial_block is None)
        for block, renamed in zip(one.blocks, other.blocks, strict=True):
            assert names.setdefault(block, renamed) == renamed
    assert len(set(names.values())) == len(names)


def test_a_pause_is_what_lies_between_an_answer_and_the_next_turn(tmp_path: Path) -> None:
    made = make_trace(Shape(num_sessions=1, mean_turns=9.0), seed=2)
    path = tmp_path / "made.jsonl"
    write_trace(path, made)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(rows) > 1
    assert rows[0]["delay"] == 0
    for former, row in pairwise(zip(made, rows, strict=True)):
        expected_s = row[0].arrival_s - former[0].end_s
        assert row[1]["delay"] == pytest.approx(1000 * expected_s, abs=0.01)
