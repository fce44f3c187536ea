"""Traces of agents as AIPerf writes them: a row has a turn's new tokens alone.

A row has `session_id`, `input_length`, `output_length` and `hash_ids`; the first one of a session
also `timestamp` (ms), the others `delay`, the ms from the answer before.
"""

import heapq
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from raydix.errors import BadRequest
from raydix.runtime.foresight.prompt_blocks import Part, PromptBlocks
from raydix.runtime.foresight.traces import (
    DECODE_TOKENS_PER_S,
    PREFILL_TOKENS_PER_S,
    TraceRequest,
    read_lines,
    read_trace,
)


@dataclass(slots=True)
class _Session:
    """The turns of a session, and what its prompt has come to."""

    number: int
    turns: list[Mapping[str, Any]] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)


def read_any_trace(path: Path, block_tokens: int) -> list[TraceRequest]:
    """All requests of a trace, whether its rows are whole prompts or the turns of agents.

    Raises BadRequest, which names the line, if it is neither.
    """
    turns: list[Mapping[str, Any]] = []
    is_of_turns = False
    for line in read_lines(path):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict):
            # Whoever reads whole prompts tells what is wrong with the line.
            return read_trace(path, block_tokens)
        turns.append(row)
        is_of_turns |= "timestamp" not in row and "session_id" in row
    return _join(path, turns, block_tokens) if is_of_turns else read_trace(path, block_tokens)


def _join(path: Path, rows: list[Mapping[str, Any]], block_tokens: int) -> list[TraceRequest]:
    """Whole prompts: all that went before in the session, answers included, and the new tokens.

    A turn comes its pause after the answer before, which takes as long as in all traces here.
    """
    sessions = _sessions(path, rows, block_tokens)
    coming = [
        (session.turns[0]["timestamp"] / 1000, session.number, 0) for session in sessions.values()
    ]
    by_number = {session.number: session for session in sessions.values()}
    heapq.heapify(coming)
    blocks, seen = PromptBlocks(block_tokens), set[int]()
    made: list[TraceRequest] = []
    while coming:
        arrival_s, number, turn = heapq.heappop(coming)
        session = by_number[number]
        row = session.turns[turn]
        session.parts += _new_parts(row, block_tokens)
        found, partial = blocks.of(session.parts)
        num_new = block_tokens * sum(block not in seen for block in found)
        seen.update(found)
        answer = int(row["output_length"])
        end_s = arrival_s + num_new / PREFILL_TOKENS_PER_S + answer / DECODE_TOKENS_PER_S
        next_s = None
        if turn + 1 < len(session.turns):
            next_s = end_s + session.turns[turn + 1]["delay"] / 1000
            heapq.heappush(coming, (next_s, number, turn + 1))
        made.append(
            TraceRequest(
                blocks=found,
                partial_block=partial,
                num_tokens=sum(num_tokens for _, num_tokens in session.parts),
                num_answer_tokens=answer,
                arrival_s=arrival_s,
                end_s=end_s,
                session=number,
                next_s=next_s,
            )
        )
        session.parts.append((f"answer {number} {turn}", answer))
    return made


def _sessions(path: Path, rows: list[Mapping[str, Any]], block_tokens: int) -> dict[str, _Session]:
    """The turns by session. Raises BadRequest for one that lacks something."""
    sessions: dict[str, _Session] = {}
    for number, row in enumerate(rows, start=1):
        try:
            name = str(row["session_id"])
            length, _ = int(row["input_length"]), int(row["output_length"])
            is_first = name not in sessions
            float(row["timestamp"] if is_first else row["delay"])
            is_whole = -(-length // block_tokens) == len(row["hash_ids"])
        except (KeyError, TypeError, ValueError) as error:
            raise BadRequest(
                f"{path}, line {number}: {type(error).__name__}: {error}; expected the turn of an "
                f"agent: session_id, input_length, output_length, hash_ids, and timestamp of a "
                f"first turn, delay of others."
            ) from None
        if not is_whole:
            raise BadRequest(
                f"{path}, line {number} has {len(row['hash_ids'])} hash_ids for {length} tokens. "
                f"Say with --block-tokens how large its blocks are; {block_tokens} is assumed."
            )
        sessions.setdefault(name, _Session(len(sessions) + 1)).turns.append(row)
    return sessions


def _new_parts(row: Mapping[str, Any], block_tokens: int) -> list[Part]:
    ids, left = row["hash_ids"], int(row["input_length"])
    return [
        (f"block {each}", min(block_tokens, left - block_tokens * place))
        for place, each in enumerate(ids)
    ]
