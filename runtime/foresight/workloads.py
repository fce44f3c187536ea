"""Made-up traces: sessions that grow turn by turn behind prefixes that they share."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from math import log
from types import MappingProxyType

from raydix.runtime.foresight.prompt_blocks import PromptBlocks
from raydix.runtime.foresight.traces import (
    BLOCK_TOKENS,
    DECODE_TOKENS_PER_S,
    PREFILL_TOKENS_PER_S,
    TraceRequest,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What the sessions of a trace are like. Medians and spreads are those of log-normal draws."""

    num_sessions: int = 60
    start_gap_s: float = 15.0
    """The mean of the exponential gaps between the starts of sessions."""
    common_tokens: int = 32_000
    """Tools and system prompt, which all begin with."""
    num_repositories: int = 50
    repository_tokens: int = 20_000
    """What sessions of one repository share behind that; the k-th is drawn with weight 1 / k."""
    own_tokens: int = 10_000
    turn_tokens: float = 2_100.0
    """Median of a turn's new tokens."""
    turn_spread: float = 1.0
    pause_s: float = 1.6
    """Median of the time from an answer to the session's next request."""
    pause_spread: float = 1.8
    answer_tokens: float = 312.0
    answer_spread: float = 1.0
    mean_turns: float = 20.0
    max_tokens: int = 200_000
    child_fraction: float = 0.0
    """The part of turns at which a sub-agent starts, a session that goes on from what there is and
    ends after a few turns.
    """


WORKLOADS = MappingProxyType(
    {
        "agents": Shape(),
        "chat": Shape(
            num_sessions=400,
            start_gap_s=2.0,
            common_tokens=1_000,
            repository_tokens=0,
            own_tokens=1_000,
            turn_tokens=150.0,
            pause_s=40.0,
            pause_spread=1.0,
            answer_tokens=300.0,
            mean_turns=6.0,
        ),
        "code_completion": Shape(
            num_sessions=120,
            start_gap_s=4.0,
            common_tokens=1_000,
            num_repositories=20,
            repository_tokens=8_000,
            own_tokens=2_000,
            turn_tokens=100.0,
            pause_s=5.0,
            answer_tokens=40.0,
            mean_turns=30.0,
        ),
        "document_qa": Shape(
            num_sessions=500,
            start_gap_s=2.0,
            common_tokens=500,
            num_repositories=100,
            repository_tokens=12_000,
            own_tokens=100,
            turn_tokens=60.0,
            pause_s=30.0,
            pause_spread=1.0,
            answer_tokens=200.0,
            mean_turns=3.0,
        ),
        "long_context": Shape(
            num_sessions=60,
            start_gap_s=20.0,
            common_tokens=500,
            repository_tokens=0,
            own_tokens=80_000,
            turn_tokens=400.0,
            pause_s=60.0,
            pause_spread=1.0,
            answer_tokens=400.0,
            mean_turns=5.0,
        ),
    }
)
"""What sessions of each kind are like. The figures are guesses: nobody's traffic was measured."""


@dataclass(slots=True)
class _Session:
    """A session that is to send its next request."""

    number: int
    parts: list[tuple[str, int]]
    """What its prompt is made of: the name of each part, and its tokens."""
    at_s: float
    mean_turns: float


def make_trace(shape: Shape, seed: int) -> list[TraceRequest]:
    """All requests of a made-up trace, in order; the same for the same shape and seed."""
    draw = random.Random(seed)
    waiting = list(_roots(shape, draw))
    blocks, seen = PromptBlocks(), set[int]()
    made: list[TraceRequest] = []
    num_sessions = len(waiting)
    while waiting:
        session = min(waiting, key=lambda each: each.at_s)
        waiting.remove(session)
        turn = f"turn {len(made)}"
        session.parts.append((turn, _tokens(draw, shape.turn_tokens, shape.turn_spread)))
        num_tokens = sum(tokens for _, tokens in session.parts)
        found, partial = blocks.of(session.parts)
        num_new = BLOCK_TOKENS * sum(block not in seen for block in found)
        seen.update(found)

        answer = _tokens(draw, shape.answer_tokens, shape.answer_spread)
        end_s = session.at_s + num_new / PREFILL_TOKENS_PER_S + answer / DECODE_TOKENS_PER_S
        next_s = end_s + draw.lognormvariate(log(shape.pause_s), shape.pause_spread)
        goes_on = draw.random() > 1 / session.mean_turns and num_tokens < shape.max_tokens
        made.append(
            TraceRequest(
                blocks=found,
                partial_block=partial,
                num_tokens=num_tokens,
                num_answer_tokens=answer,
                arrival_s=session.at_s,
                end_s=end_s,
                session=session.number,
                next_s=next_s if goes_on else None,
            )
        )
        session.parts.append((f"answer to {turn}", answer))
        if draw.random() < shape.child_fraction:
            num_sessions += 1
            waiting.append(_Session(num_sessions, list(session.parts), end_s + 0.1, 4.0))
        if goes_on:
            session.at_s = next_s
            waiting.append(session)
    return made


def _roots(shape: Shape, draw: random.Random) -> Iterator[_Session]:
    """The sessions that begin by themselves."""
    at_s = 0.0
    weights = [1 / (index + 1) for index in range(shape.num_repositories)]
    for number in range(1, shape.num_sessions + 1):
        [repository] = draw.choices(range(shape.num_repositories), weights)
        parts = [
            ("common", shape.common_tokens),
            (f"repository {repository}", shape.repository_tokens),
            (f"session {number}", draw.randint(shape.own_tokens // 2, 3 * shape.own_tokens // 2)),
        ]
        yield _Session(number, [each for each in parts if each[1]], at_s, shape.mean_turns)
        at_s += draw.expovariate(1 / shape.start_gap_s)


def _tokens(draw: random.Random, median: float, spread: float) -> int:
    return max(1, round(draw.lognormvariate(log(median), spread)))
