"""The requests of a trace of block ids, with their sessions and what comes next of them."""

import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BLOCK_TOKENS = 512
_PREFILL_TOKENS_PER_S = 20_000
_DECODE_TOKENS_PER_S = 60
"""How long an answer takes: as the agentic trace was made."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TraceRequest:
    """A request, and the truth about its session."""

    blocks: tuple[int, ...]
    """Whole blocks, each named with all that comes before it."""
    partial_block: int | None
    """The last block, if it is not whole."""
    num_tokens: int
    """The length of the whole prompt."""
    num_answer_tokens: int
    arrival_s: float
    end_s: float
    """When its answer ends, if nothing has to wait."""
    session: int
    next_s: float | None
    """When the session's next request comes; None: none does."""


def read_trace(path: Path) -> list[TraceRequest]:
    """All requests of a trace, in order.

    A trace that names no sessions has those that its chains tell: a request goes on with the one
    that last used the deepest block they share, if that is more than what all begin with.
    """
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt") as lines:
        rows = [json.loads(line) for line in lines]
    blocks = [tuple(row["hash_ids"][: row["input_length"] // BLOCK_TOKENS]) for row in rows]
    named = [row.get("session_id") for row in rows]
    sessions = _by_chains(blocks) if None in named else _numbered(named)
    arrivals = [row["timestamp"] / 1000 for row in rows]
    next_s = _next_arrivals(sessions, arrivals)

    requests, seen = [], set[int]()
    for index, row in enumerate(rows):
        num_new = sum(block not in seen for block in blocks[index])
        seen.update(blocks[index])
        answer_s = row["output_length"] / _DECODE_TOKENS_PER_S
        requests.append(
            TraceRequest(
                blocks=blocks[index],
                partial_block=_partial_block(row),
                num_tokens=row["input_length"],
                num_answer_tokens=row["output_length"],
                arrival_s=arrivals[index],
                end_s=arrivals[index] + num_new * BLOCK_TOKENS / _PREFILL_TOKENS_PER_S + answer_s,
                session=sessions[index],
                next_s=next_s[index],
            )
        )
    return requests


def _partial_block(row: Mapping[str, Any]) -> int | None:
    ids = row["hash_ids"]
    return None if len(ids) == row["input_length"] // BLOCK_TOKENS else ids[-1]


def _numbered(names: Sequence[str]) -> list[int]:
    numbers: dict[str, int] = {}
    return [numbers.setdefault(name, len(numbers) + 1) for name in names]


def _by_chains(chains: Sequence[tuple[int, ...]]) -> list[int]:
    last_user: dict[int, int] = {}
    sessions: list[int] = []
    num_sessions = 0
    for blocks in chains:
        known = [block for block in blocks[1:] if block in last_user]
        if known:
            session = last_user[known[-1]]
        else:
            num_sessions += 1
            session = num_sessions
        last_user.update(dict.fromkeys(blocks, session))
        sessions.append(session)
    return sessions


def _next_arrivals(sessions: Sequence[int], arrivals: Sequence[float]) -> list[float | None]:
    coming: dict[int, float] = {}
    found: list[float | None] = []
    for session, arrival_s in zip(reversed(sessions), reversed(arrivals), strict=True):
        found.append(coming.get(session))
        coming[session] = arrival_s
    return found[::-1]
