"""A recording of a running engine, part by part, and the trace that is made of it."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np

from raydix.runtime.messages.recording import (
    BLOCK_HASH_BYTES,
    RecordedHint,
    RecordedRequest,
    RecordingPart,
)
from raydix.runtime.messages.retention import Retention, RetentionKind, hint_of

_ENTRY_BYTES = 200
"""What a request or hint takes besides the hashes of its blocks, roughly."""


class RecordedTrace:
    """Owns: what was recorded so far."""

    def __init__(self, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self._requests: list[RecordedRequest] = []
        self._hints: list[RecordedHint] = []
        self.num_bytes = 0
        """The bytes that it takes, roughly."""
        self.num_unserved = 0
        self.num_dropped = 0

    @property
    def num_requests(self) -> int:
        """The number of recorded requests."""
        return len(self._requests)

    def add(self, part: RecordingPart) -> None:
        """Add what an engine has told next."""
        self._requests += part.requests
        self._hints += part.hints
        self.num_unserved += part.num_unserved
        self.num_dropped += part.num_dropped
        self.num_bytes += sum(len(each.blocks + each.answer_blocks) for each in part.requests)
        self.num_bytes += _ENTRY_BYTES * (len(part.requests) + len(part.hints))

    def rows(self, max_requests: int | None = None) -> Iterator[dict[str, Any]]:
        """The rows of the trace, in the order in which requests came; the first so many.

        Blocks and sessions are numbered as they first come: not even their hashes are told.
        """
        requests = sorted(self._requests, key=lambda each: each.arrival_s)[:max_requests]
        requests = with_hints(requests, self._hints)
        numbers = iter(_numbers(requests))
        sessions: dict[bytes, int] = {}
        last_end_s: dict[bytes, float] = {}
        for request in requests:
            row = {
                "timestamp": round(1000 * request.arrival_s, 3),
                "input_length": request.num_prompt_tokens,
                "output_length": request.num_answer_tokens,
                "hash_ids": next(numbers),
                "answer_hash_ids": next(numbers),
                "block_tokens": self.block_tokens,
            }
            if (session := request.session) is not None:
                row["session_id"] = f"s{sessions.setdefault(session, len(sessions) + 1)}"
                pause_s = request.arrival_s - last_end_s.get(session, request.arrival_s)
                row["delay"] = round(1000 * max(0.0, pause_s), 3)
                last_end_s[session] = max(request.end_s, last_end_s.get(session, 0.0))
            if request.priority:
                row["priority"] = request.priority
            if request.retention is not None:
                row["retention"] = hint_of(request.retention)
            yield row


def with_hints(
    requests: Iterable[RecordedRequest], hints: Iterable[RecordedHint]
) -> list[RecordedRequest]:
    """Requests in the order in which they came, each with the last hint before its next turn.

    A hint that came after its session's answer counts from there on: it is as much longer.
    """
    found = list(requests)
    of_session: dict[bytes, list[int]] = {}
    for index, request in enumerate(found):
        if request.session is not None:
            of_session.setdefault(request.session, []).append(index)
    for hint in sorted(hints, key=lambda each: each.time_s):
        turns = of_session.get(hint.session, [])
        num_before = bisect_right(turns, hint.time_s, key=lambda index: found[index].arrival_s)
        if not num_before:
            continue
        last = turns[num_before - 1]
        late_s = max(0.0, hint.time_s - found[last].end_s)
        found[last] = replace(found[last], retention=_later(hint.retention, late_s))
    return found


def _later(retention: Retention, late_s: float) -> Retention:
    if retention.kind is RetentionKind.END:
        return retention
    return replace(retention, seconds=retention.seconds + late_s)


def _numbers(requests: Iterable[RecordedRequest]) -> list[list[int]]:
    """The blocks of each prompt, then of its answer, numbered in the order in which they come."""
    parts = chain.from_iterable((each.blocks, each.answer_blocks) for each in requests)
    hashes = [np.frombuffer(part, dtype=f"<u{BLOCK_HASH_BYTES}") for part in parts]
    if not hashes:
        return []
    _, first, inverse = np.unique(np.concatenate(hashes), return_index=True, return_inverse=True)
    number_of = np.empty(len(first), dtype=np.int64)
    number_of[np.argsort(first, kind="stable")] = np.arange(len(first))
    ends = np.cumsum([len(each) for each in hashes])
    return [each.tolist() for each in np.split(number_of[inverse], ends[:-1])]
