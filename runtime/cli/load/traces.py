"""Workloads from files: Mooncake's traces, and JSON lines with prompts."""

import gzip
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from raydix.errors import BadRequest
from raydix.runtime.cli.load.requests import AnyPrompt, BlockPrompt, ChatPrompt, LoadRequest
from raydix.runtime.messages.retention import RETENTION_FORMS, retention_from

TRACE_BLOCK_TOKENS = 512
"""Tokens per block of Mooncake's traces, and of those that do not say."""
_SHAPES = (
    "a Mooncake record (timestamp, input_length, output_length, hash_ids), a text, token ids, or "
    "an object with prompt, prompt_token_ids or messages"
)


def read_requests(
    path: Path, output_tokens: int, block_tokens: int | None, max_requests: int | None
) -> tuple[LoadRequest, ...]:
    """The requests of a file, one per line, which may be compressed (`.gz`).

    output_tokens: for prompts that do not say. block_tokens: for each block of a Mooncake trace;
    fewer than it has shrink its prompts and outputs alike; None: as many. Raises BadRequest, which
    names the line, if the file cannot be read.
    """
    try:
        opened = gzip.open if path.suffix == ".gz" else open
        with opened(path, "rt", encoding="utf-8-sig") as file:
            lines = [line for line in file if line.strip()]
    except (OSError, ValueError, EOFError) as error:
        # Of what the system refuses the text names the file again.
        reason = getattr(error, "strerror", None) or error
        raise BadRequest(f"--trace {path} cannot be read: {reason}.") from None

    requests = []
    for number, line in enumerate(itertools.islice(lines, max_requests), start=1):
        place = f"--trace {path}, line {number}"
        requests.append(_request(_parse(line, place), place, output_tokens, block_tokens))
    if not requests:
        raise BadRequest(f"--trace {path} holds no request; expected one per line.")
    return in_sessions(requests)


def in_sessions(requests: Sequence[LoadRequest]) -> tuple[LoadRequest, ...]:
    """The requests, each of a session behind the one before it: all arrive with their first turn.

    A session's later turns come once the one before has ended and their pause is over.
    """
    last: dict[str, int] = {}
    linked: list[LoadRequest] = []
    for index, request in enumerate(requests):
        session = request.session_id
        former = None if session is None else last.get(session)
        if former is not None:
            linked[former] = replace(linked[former], next_pause_s=request.pause_s)
            request = replace(request, after=former, arrival_s=linked[former].arrival_s)
        if session is not None:
            last[session] = index
        linked.append(request)
    return tuple(linked)


def _parse(line: str, place: str) -> Any:
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        raise BadRequest(
            f"{place} is no JSON from character {error.pos + 1} on ({error.msg}); expected "
            f"{_SHAPES}."
        ) from None


def _request(value: Any, place: str, output_tokens: int, block_tokens: int | None) -> LoadRequest:
    if not isinstance(value, Mapping):
        return LoadRequest(prompt=_prompt({"prompt": value}, place), output_tokens=output_tokens)
    try:
        arrival_s = value["timestamp"] / 1000 if "timestamp" in value else None
        if "hash_ids" in value:
            return _of_blocks(value, arrival_s, block_tokens)
        asked = value.get("output_tokens", value.get("max_tokens", output_tokens))
        return LoadRequest(
            prompt=_prompt(value, place), output_tokens=max(1, int(asked)), arrival_s=arrival_s
        )
    except (KeyError, TypeError, ValueError) as error:
        raise BadRequest(f"{place}: {type(error).__name__}: {error}; expected {_SHAPES}.") from None


def _of_blocks(
    value: Mapping[str, Any], arrival_s: float | None, block_tokens: int | None
) -> LoadRequest:
    named = value.get("block_tokens", TRACE_BLOCK_TOKENS)
    if type(named) is not int or named < 1:
        raise ValueError(f"block_tokens is {named!r:.40}")
    block_tokens = named if block_tokens is None else block_tokens
    hint = value.get("retention")
    if hint is not None and retention_from(hint) is None:
        raise ValueError(f"retention is {hint!r:.80}, none of {RETENTION_FORMS}")

    def scaled(num_tokens: int) -> int:
        return max(1, num_tokens * block_tokens // named)

    prompt = BlockPrompt(
        block_ids=tuple(value["hash_ids"]),
        num_tokens=scaled(value["input_length"]),
        block_tokens=block_tokens,
    )
    session = value.get("session_id")
    return LoadRequest(
        prompt=prompt,
        output_tokens=scaled(value["output_length"]),
        arrival_s=arrival_s,
        session_id=None if session is None else str(session),
        pause_s=max(0.0, float(value.get("delay", 0.0)) / 1000),
        priority=int(value.get("priority", 0)),
        retention=hint,
    )


def _prompt(value: Mapping[str, Any], place: str) -> AnyPrompt:
    if "messages" in value:
        return ChatPrompt(messages=tuple(value["messages"]))
    given = value.get("prompt_token_ids", value.get("prompt"))
    if isinstance(given, str) or (isinstance(given, list) and _are_ids(given)):
        return given
    raise BadRequest(f"{place} holds no prompt; expected {_SHAPES}.")


def _are_ids(values: list[Any]) -> bool:
    return all(isinstance(each, int) for each in values)
