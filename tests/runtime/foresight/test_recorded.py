"""A recording becomes a trace that is read back with all that was recorded."""

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from raydix.errors import BadRequest
from raydix.runtime.cli.load.requests import BlockPrompt
from raydix.runtime.cli.load.traces import read_requests
from raydix.runtime.config.policies import EvictionPolicy
from raydix.runtime.foresight.plan.limits import infinite_blocks, lru_blocks, min_blocks
from raydix.runtime.foresight.plan.quick import HostTier, Tier, TreeTier
from raydix.runtime.foresight.recorded import RecordedTrace, with_hints
from raydix.runtime.foresight.simulator.requests import requests_of, tokens_of_request
from raydix.runtime.foresight.traces import (
    TraceRequest,
    block_tokens_of,
    read_trace,
    write_rows,
    write_trace,
)
from raydix.runtime.messages.recording import RecordedHint, RecordedRequest, RecordingPart
from raydix.runtime.messages.retention import Retention, RetentionKind

BLOCK = 16
END = Retention(kind=RetentionKind.END)


def soon(seconds: float) -> Retention:
    return Retention(kind=RetentionKind.RESUME, seconds=seconds)


def asked(
    at_s: float,
    blocks: list[int],
    *,
    rest: int = 0,
    answer: tuple[int, ...] = (),
    num_answer_tokens: int = 5,
    session: bytes | None = None,
    priority: int = 0,
    retention: Retention | None = None,
) -> RecordedRequest:
    """A request of whole blocks, and one of `rest` tokens if there are any."""
    return RecordedRequest(
        arrival_s=at_s,
        end_s=at_s + 2.0,
        num_prompt_tokens=BLOCK * (len(blocks) - bool(rest)) + rest,
        num_answer_tokens=num_answer_tokens,
        blocks=hashes(blocks),
        answer_blocks=hashes(answer),
        session=session,
        priority=priority,
        retention=retention,
    )


def hashes(blocks: Sequence[int]) -> bytes:
    """Hashes as large as they are."""
    return np.array([(1 << 63) + 7919 * each for each in blocks], dtype="<u8").tobytes()


def written(
    path: Path, *requests: RecordedRequest, hints: tuple[RecordedHint, ...] = ()
) -> list[TraceRequest]:
    trace = RecordedTrace(BLOCK)
    # In two parts, and in the order in which requests ended.
    trace.add(RecordingPart(block_tokens=BLOCK, requests=requests[1:], hints=hints))
    trace.add(RecordingPart(block_tokens=BLOCK, requests=requests[:1]))
    assert trace.num_requests == len(requests)
    write_rows(path, trace.rows())
    assert block_tokens_of(path, None) == BLOCK
    return read_trace(path, BLOCK)


def test_what_was_recorded_is_read_back(tmp_path: Path) -> None:
    first, second, alone = written(
        tmp_path / "trace.jsonl.gz",
        asked(1.0, [4, 2], session=b"s", retention=soon(3.0)),
        asked(6.5, [4, 2, 9], rest=3, session=b"s", priority=2),
        asked(7.0, [4], priority=-1),
    )
    assert (first.blocks, second.blocks, second.partial_block) == ((0, 1), (0, 1), 2)
    assert alone.blocks == (0,)
    assert first.session == second.session != alone.session
    assert (second.num_tokens, second.num_answer_tokens) == (35, 5)
    assert (first.arrival_s, first.next_s) == (1.0, 6.5)
    assert second.pause_s == 3.5, "from the answer before"
    assert [each.priority for each in (first, second, alone)] == [0, 2, -1]
    assert [each.retention for each in (first, second, alone)] == [soon(3.0), None, None]


def test_hints_go_to_the_turn_before_them_and_count_from_its_answer(tmp_path: Path) -> None:
    turns = [asked(at, [1], session=b"s") for at in (0.0, 10.0, 20.0)]
    hints = (
        RecordedHint(time_s=1.0, session=b"s", retention=soon(9.0)),
        RecordedHint(time_s=13.0, session=b"s", retention=soon(4.0)),
        RecordedHint(time_s=25.0, session=b"s", retention=END),
        RecordedHint(time_s=25.0, session=b"nobody's", retention=END),
    )
    found = written(tmp_path / "trace.jsonl", *turns, hints=hints)
    assert [each.retention for each in found] == [soon(9.0), soon(5.0), END]


def test_a_simulation_and_a_load_ask_for_what_was_recorded(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    trace = written(
        path,
        asked(1.0, [4, 2], session=b"s", priority=3, retention=soon(3.0)),
        asked(6.5, [4, 2, 9], rest=3, session=b"s"),
    )
    simulated = requests_of(trace, BLOCK, is_closed_loop=True)
    assert (simulated[0].priority, simulated[0].retention) == (3, soon(3.0))
    assert (simulated[1].follows, simulated[1].pause_s) == (0, 3.5)

    first, second = read_requests(path, 32, None, None)
    assert isinstance(first.prompt, BlockPrompt)
    assert (first.prompt.num_tokens, first.prompt.block_tokens) == (32, BLOCK)
    assert (first.priority, first.hint) == (3, {"resume_in_s": 3.0})
    assert (second.after, second.pause_s) == (0, 3.5)
    assert second.prompt.num_tokens == 35  # type: ignore[union-attr]
    halved, _ = read_requests(path, 32, BLOCK // 2, None)
    assert halved.prompt.num_tokens == 16  # type: ignore[union-attr]


def answered_trace(path: Path) -> list[TraceRequest]:
    """A prompt of 35 tokens, an answer of 20, and a next turn that has 48 of these 55."""
    return written(
        path,
        asked(1.0, [4, 2, 8], rest=3, answer=(9,), num_answer_tokens=20, session=b"s"),
        asked(6.5, [4, 2, 9, 7], rest=3, session=b"s"),
    )


def test_what_answers_leave_is_read_back_and_found_by_the_next_turn(tmp_path: Path) -> None:
    first, second = answered_trace(tmp_path / "trace.jsonl")
    assert (first.blocks, first.partial_block, first.answer_blocks) == ((0, 1), 2, (3,))
    assert second.blocks == (0, 1, 3)
    chains, answers = [first.blocks, second.blocks], [first.answer_blocks, ()]
    for found in (
        infinite_blocks(chains, answers),
        lru_blocks(chains, 4, answers),
        min_blocks(chains, 4, answers),
        _found_by(TreeTier(4, EvictionPolicy.LRU), [first, second]),
        _found_by(HostTier(8, EvictionPolicy.LRU), [first, second]),
    ):
        assert found == [0, 3]
    assert infinite_blocks(chains) == [0, 2]
    copy = tmp_path / "copy.jsonl"
    write_trace(copy, [first, second])
    assert read_trace(copy, BLOCK)[0].answer_blocks == (3,)


def _found_by(tier: Tier, requests: list[TraceRequest]) -> list[int]:
    found = []
    for request in requests:
        found.append(tier.begin(request, request.arrival_s))
        tier.end(request, None, request.arrival_s)
    return found


def test_a_simulated_prompt_repeats_what_was_answered(tmp_path: Path) -> None:
    trace = answered_trace(tmp_path / "trace.jsonl")
    first, second = requests_of(trace, BLOCK, is_closed_loop=True)
    answer = tokens_of_request(0, 20, 1000).tolist()
    before = [*first.prompt(1000).tolist(), *answer]
    assert second.prompt(1000).tolist()[: 3 * BLOCK] == before[: 3 * BLOCK]
    assert first.prompt(1000).tolist()[32:] != second.prompt(1000).tolist()[48:]


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        ("[7, 8]", "line 1 has 2 answer_hash_ids; expected 1 at most"),
        ("[1.5]", "answer_hash_ids is no list of numbers or texts"),
        ("7", "answer_hash_ids is no list"),
    ],
)
def test_answers_that_cannot_be_are_told_with_their_line(
    tmp_path: Path, ids: str, words: str
) -> None:
    path = tmp_path / "trace.jsonl"
    answered_trace(path)
    path.write_text(path.read_text().replace('"answer_hash_ids": [3]', f'"answer_hash_ids": {ids}'))
    with pytest.raises(BadRequest, match=words):
        read_trace(path, BLOCK)


def test_an_empty_recording_is_an_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    write_rows(path, RecordedTrace(BLOCK).rows())
    with pytest.raises(BadRequest, match="holds no request"):
        read_trace(path, block_tokens_of(path, None))


def test_blocks_of_another_size_than_the_trace_says_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    written(path, asked(0.0, [1]))
    with pytest.raises(BadRequest, match="has blocks of 16 tokens, and --block-tokens is 32"):
        block_tokens_of(path, 32)
    with pytest.raises(BadRequest, match="line 1 has blocks of 16 tokens; expected 512"):
        read_trace(path)
    path.write_text(path.read_text().replace('"block_tokens": 16', '"block_tokens": "x"'))
    with pytest.raises(BadRequest, match="block_tokens is 'x'"):
        block_tokens_of(path, None)


def test_thousands_of_hints_of_one_session_go_to_their_turns_at_once() -> None:
    """Compared as so many pairs they would take minutes."""
    num = 20_000
    turns = [asked(2.0 * turn, [turn], session=b"s") for turn in range(num)]
    hints = [
        RecordedHint(time_s=2.0 * turn + 1.5, session=b"s", retention=soon(turn))
        for turn in range(num)
    ]
    began_s = time.process_time()
    found = with_hints(turns, hints)
    assert time.process_time() - began_s < 20.0
    assert [each.retention.seconds // 1 for each in found if each.retention] == list(range(num))


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ('"retention": {"end": 1}', "retention is {'end': 1}, none of"),
        ('"priority": 1.5', "priority is 1.5"),
        ('"delay": -1', "delay is -1"),
        (f'"delay": 1{400 * "0"}', "delay is 1000"),
        (f'"timestamp": 1{400 * "0"}', "timestamp is 1000"),
        (f'"output_length": 1{400 * "0"}', "output_length is 1000"),
        ('"session_id": ["a"]', "session_id is ['a'], no text"),
        ('"hash_ids": [4, 5, 4]', "hash_ids and answer_hash_ids name 4 twice"),
        ('"answer_hash_ids": [0]', "hash_ids and answer_hash_ids name 0 twice"),
    ],
)
def test_a_wrong_hint_or_number_is_told_with_its_line(
    tmp_path: Path, field: str, words: str
) -> None:
    path = tmp_path / "trace.jsonl"
    written(path, asked(0.0, [1]))
    path.write_text(path.read_text().replace("}\n", f", {field}}}\n"))
    with pytest.raises(BadRequest) as caught:
        read_trace(path, BLOCK)
    assert f"line 1: {words}" in str(caught.value)
