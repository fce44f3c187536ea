"""The requests of a trace of block ids, with their sessions and what comes next of them.

A trace is in Mooncake's format: one JSON object a line with `timestamp` (ms), `input_length`,
`output_length` and `hash_ids`, one id per block of the prompt, each of which stands for its block
and all before it. The last block may be partial. It may also name `block_tokens`, `session_id`,
`delay`, the ms from the session's answer before, `priority`, `retention`, a hint of what comes next
of the session, and `answer_hash_ids`, one id per block that the answer fills behind the prompt's
whole ones.
"""

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raydix.errors import BadRequest
from raydix.runtime.messages.retention import (
    RETENTION_FORMS,
    Retention,
    hint_of,
    retention_from,
)

BLOCK_TOKENS = 512
"""Tokens per block of Mooncake's own traces, and of others that do not say."""
_EXPECTED = "expected an object with timestamp, input_length, output_length and hash_ids."
_MOST_MS = 1e15
"""Times beyond 30,000 years are in another unit."""
_MOST_TOKENS = 2**31 - 1
PREFILL_TOKENS_PER_S = 20_000
DECODE_TOKENS_PER_S = 60
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
    answer_blocks: tuple[int, ...] = ()
    """The whole blocks that its answer leaves behind those of the prompt, as far as known."""
    arrival_s: float
    end_s: float
    """When its answer ends, if nothing has to wait."""
    session: int
    next_s: float | None
    """When the session's next request comes; None: none does."""
    pause_s: float | None = None
    """The time from the session's answer before to this request; None: the trace does not say."""
    priority: int = 0
    retention: Retention | None = None
    """What its client says, as it ends, of what comes next of the session; None: nothing."""


def block_tokens_of(path: Path, asked: int | None) -> int:
    """The tokens of a trace's blocks: as asked, or as its first request says, or 512.

    Raises BadRequest if the file cannot be read, or says something else than is asked.
    """
    named = None
    for line in read_lines(path):
        if line.strip():
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                row = None
            named = row.get("block_tokens") if isinstance(row, dict) else None
            break
    if named is not None and (type(named) is not int or named < 1):
        raise BadRequest(f"{path}: block_tokens is {named!r:.40}; expected a whole number above 0.")
    if named is not None and asked not in (None, named):
        raise BadRequest(
            f"{path} has blocks of {named} tokens, and --block-tokens is {asked}. Leave it out."
        )
    return asked or named or BLOCK_TOKENS


def read_trace(path: Path, block_tokens: int = BLOCK_TOKENS) -> list[TraceRequest]:
    """All requests of a trace, in order; the file may be compressed (`.gz`).

    A trace that names no sessions has those that its chains tell: a request goes on with the one
    that last used the deepest block they share, if that is more than what all begin with. Raises
    BadRequest, which names the line, if the file is no such trace.
    """
    rows = list(_rows(path, block_tokens))
    if not rows:
        raise BadRequest(f"{path} holds no request; expected one JSON object per line.")
    numbers: dict[Any, int] = {}
    ids, answers = [], []
    for row in rows:
        ids.append([numbers.setdefault(each, len(numbers)) for each in row["hash_ids"]])
        answer = row.get("answer_hash_ids", ())
        answers.append(tuple(numbers.setdefault(each, len(numbers)) for each in answer))
    num_whole = [row["input_length"] // block_tokens for row in rows]
    blocks = [tuple(each[:num]) for each, num in zip(ids, num_whole, strict=True)]
    named = [row.get("session_id") for row in rows]
    if None in named:
        pairs = zip(named, _by_chains(blocks), strict=True)
        named = [("chain", chain) if name is None else name for name, chain in pairs]
    sessions = _numbered(named)
    arrivals = [row["timestamp"] / 1000 for row in rows]
    next_s = _next_arrivals(sessions, arrivals)

    requests, seen = [], set[int]()
    for index, row in enumerate(rows):
        num_new = sum(block not in seen for block in blocks[index])
        seen.update(blocks[index])
        answer_s = row["output_length"] / DECODE_TOKENS_PER_S
        requests.append(
            TraceRequest(
                blocks=blocks[index],
                partial_block=None if len(ids[index]) == num_whole[index] else ids[index][-1],
                num_tokens=row["input_length"],
                num_answer_tokens=row["output_length"],
                answer_blocks=answers[index],
                arrival_s=arrivals[index],
                end_s=arrivals[index] + num_new * block_tokens / PREFILL_TOKENS_PER_S + answer_s,
                session=sessions[index],
                next_s=next_s[index],
                pause_s=row["delay"] / 1000 if "delay" in row else None,
                priority=row.get("priority", 0),
                retention=retention_from(row.get("retention")),
            )
        )
    return requests


def write_trace(path: Path, requests: Sequence[TraceRequest]) -> None:
    """Write requests as a trace that names its sessions, and the pauses before their turns.

    Whoever replays it in a closed loop takes `delay`, the ms from the answer before, and leaves
    `timestamp` alone but for first turns. A name that ends with .gz is compressed.
    """
    last_end_s: dict[int, float] = {}
    rows = []
    for request in requests:
        former_s = last_end_s.get(request.session, request.arrival_s)
        partial = () if request.partial_block is None else (request.partial_block,)
        row: dict[str, Any] = {
            "timestamp": round(1000 * request.arrival_s, 3),
            "input_length": request.num_tokens,
            "output_length": request.num_answer_tokens,
            "hash_ids": [*request.blocks, *partial],
            "session_id": f"s{request.session}",
            "delay": round(1000 * max(0.0, request.arrival_s - former_s), 3),
        }
        if request.answer_blocks:
            row["answer_hash_ids"] = request.answer_blocks
        if request.priority:
            row["priority"] = request.priority
        if request.retention is not None:
            row["retention"] = hint_of(request.retention)
        last_end_s[request.session] = request.end_s
        rows.append(row)
    write_rows(path, rows)


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write the lines of a trace; a name that ends with .gz is compressed."""
    text = "".join(json.dumps(row) + "\n" for row in rows)
    if path.suffix == ".gz":
        # Without a time of its own the file is the same each time.
        path.write_bytes(gzip.compress(text.encode(), mtime=0))
    else:
        path.write_text(text)


def read_lines(path: Path) -> list[str]:
    """The lines of a file, empty ones included. Raises BadRequest if it cannot be read."""
    try:
        opened = gzip.open if path.suffix == ".gz" else open
        with opened(path, "rt", encoding="utf-8") as file:
            return list(file)
    except (OSError, ValueError, EOFError, zlib.error) as error:
        # Of what the system refuses the text names the file again.
        reason = getattr(error, "strerror", None) or error
        raise BadRequest(f"{path} cannot be read: {reason}.") from None


def _rows(path: Path, block_tokens: int) -> Iterator[Mapping[str, Any]]:
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            continue
        place = f"{path}, line {number}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise BadRequest(f"{place} is no JSON: {error}; {_EXPECTED}") from None
        wrong = _what_is_wrong(row)
        if wrong is not None:
            raise BadRequest(f"{place}: {wrong}; {_EXPECTED}")

        named = row.get("block_tokens", block_tokens)
        if named != block_tokens:
            raise BadRequest(
                f"{place} has blocks of {named!r:.40} tokens; expected {block_tokens}, as those "
                "before it. All blocks of a trace have one size."
            )
        num_tokens, num_ids = row["input_length"], len(row["hash_ids"])
        num_expected = -(-num_tokens // block_tokens)
        if num_ids != num_expected:
            raise BadRequest(
                f"{place} has {num_ids} hash_ids for {num_tokens} tokens; expected {num_expected} "
                f"of {block_tokens} tokens. Say with --block-tokens how large its blocks are."
            )
        num_answer_ids = len(row.get("answer_hash_ids", ()))
        end = num_tokens + row["output_length"]
        num_filled = end // block_tokens - num_tokens // block_tokens
        if num_answer_ids > num_filled:
            raise BadRequest(
                f"{place} has {num_answer_ids} answer_hash_ids; expected {num_filled} at most, as "
                f"prompt and answer fill no more blocks of {block_tokens} tokens behind the "
                "prompt's whole ones. Leave the field out where answers are not known."
            )
        yield row


def _what_is_wrong(row: Any) -> str | None:
    """What keeps a line's JSON from being a request; None: nothing does."""
    if not isinstance(row, dict):
        return "it is no object"
    for name in ("timestamp", "input_length", "output_length", "hash_ids"):
        if name not in row:
            return f"{name} is missing"

    for name in ("timestamp", "delay"):
        value = row.get(name, 0)
        # `type`, as a bool is an int, too.
        if type(value) not in (int, float) or not 0 <= value <= _MOST_MS:
            return f"{name} is {value!r:.40}, no number from 0 to {_MOST_MS:g}"
    for name, least in (("input_length", 1), ("output_length", 0)):
        value = row[name]
        if type(value) is not int or not least <= value <= _MOST_TOKENS:
            return f"{name} is {value!r:.40}, no whole number from {least} to {_MOST_TOKENS}"
    priority, session = row.get("priority", 0), row.get("session_id")
    if type(priority) is not int:
        return f"priority is {priority!r:.40}, no whole number"
    if session is not None and type(session) not in (int, str):
        return f"session_id is {session!r:.40}, no text and no whole number"
    hint = row.get("retention")
    if hint is not None and retention_from(hint) is None:
        return f"retention is {hint!r:.80}, none of {RETENTION_FORMS}"
    for name in ("hash_ids", "answer_hash_ids"):
        ids = row.get(name, [])
        if not isinstance(ids, list) or any(type(each) not in (int, str) for each in ids):
            return f"{name} is no list of numbers or texts"
    return _what_comes_twice([*row["hash_ids"], *row.get("answer_hash_ids", [])])


def _what_comes_twice(ids: Sequence[int | str]) -> str | None:
    """What is wrong with the ids of one request's blocks; None: nothing is."""
    seen: set[int | str] = set()
    for each in ids:
        if each in seen:
            text = "though each id stands for its block and all before it"
            return f"hash_ids and answer_hash_ids name {each!r:.40} twice, {text}"
        seen.add(each)
    return None


def _numbered(names: Sequence[object]) -> list[int]:
    numbers: dict[object, int] = {}
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
