"""Turns of agents become whole prompts: what went before, answers included, and what is new."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from raydix.errors import BadRequest
from raydix.runtime.foresight.agentic import read_any_trace
from raydix.runtime.foresight.traces import write_trace
from raydix.runtime.foresight.workloads import Shape, make_trace

BLOCK = 16


def turn(session: str, num_tokens: int, ids: list[int], **more: float) -> dict[str, Any]:
    row = {"session_id": session, "input_length": num_tokens, "output_length": 6, "hash_ids": ids}
    return row | more


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(each) + "\n" for each in rows))
    return path


def test_a_turn_asks_all_that_went_before(tmp_path: Path) -> None:
    rows = [
        turn("a", 32, [1, 2], timestamp=0.0),
        turn("a", 10, [3], delay=1000.0),
        turn("a", 20, [4, 5], delay=500.0),
        turn("b", 40, [1, 2, 9], timestamp=100.0),
    ]
    found = read_any_trace(write(tmp_path / "turns.jsonl", rows), BLOCK)
    own = [request for request in found if request.session == 1]
    [other] = [request for request in found if request.session == 2]
    assert [request.num_tokens for request in own] == [32, 48, 74]
    assert [len(request.blocks) for request in own] == [2, 3, 4]
    for former, latter in pairwise(own):
        assert latter.blocks[: len(former.blocks)] == former.blocks
        assert former.next_s == latter.arrival_s
    assert own[1].arrival_s == pytest.approx(own[0].end_s + 1.0)
    assert own[2].next_s is None
    assert other.blocks == own[0].blocks, "what both begin with is one"
    assert other.partial_block not in (None, own[1].blocks[2])
    assert [request.arrival_s for request in found] == sorted(r.arrival_s for r in found)


def test_whole_prompts_are_read_as_such(tmp_path: Path) -> None:
    made = make_trace(Shape(num_sessions=3, mean_turns=3.0), seed=1)
    path = tmp_path / "whole.jsonl"
    write_trace(path, made)
    assert [r.num_tokens for r in read_any_trace(path, 512)] == [r.num_tokens for r in made]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (turn("a", 10, [3]), "line 2: KeyError: 'delay'"),
        (turn("b", 10, [3], delay=1.0), "line 2: KeyError: 'timestamp'"),
        (turn("a", 20, [3], delay=1.0), "line 2 has 1 hash_ids for 20 tokens"),
    ],
)
def test_a_turn_that_lacks_something_is_told_with_its_line(
    tmp_path: Path, row: dict[str, Any], words: str
) -> None:
    path = write(tmp_path / "turns.jsonl", [turn("a", 16, [1], timestamp=0.0), row])
    with pytest.raises(BadRequest, match=words):
        read_any_trace(path, BLOCK)


def test_what_is_no_json_is_told_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "turns.jsonl"
    path.write_text("{\n")
    with pytest.raises(BadRequest, match="line 1"):
        read_any_trace(path, BLOCK)
