"""How many tokens of prompts a step computes, alone or beside decodes.

All that take part in a step wait for its end: a longer one makes decodes slower and lets a prompt
wait for others. A shorter one computes its tokens at a higher price, as some of a step's time does
not depend on their number. Two rules follow. Beside decodes a step takes at most so many times as
long as they would alone, but for what it takes without a token of a prompt: it may take that again
for tokens. And whoever waits is added to another's step only as long as that makes
tokens notably cheaper.
"""

import math
from dataclasses import dataclass

_MIN_BESIDE_DECODES = 512
"""Prompt tokens that a step may take in any case. With fewer its time hardly depends on their
number: prompts would wait longer and decodes would gain little.
"""
_MIN_SHARED = 2048
"""Prompt tokens up to which several prompts share a step in any case."""
_FIXED_PART = 0.25
"""What does not depend on a step's tokens may be such a part of its time for tokens. One more
prompt makes little cheaper then, and the others would wait for it.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """What steps with the same decodes are predicted to take."""

    decodes_s: float
    """Without prompts."""
    mixed_s: float
    """With prompts, but for their tokens."""
    token_s: float
    """More, for each token of a prompt."""


def tokens_beside_decodes(
    times: StepTimes, *, num_decodes: int, num_prompts: int, max_slowdown: float
) -> float:
    """Prompt tokens that a step may take beside `num_decodes` while `num_prompts` wait.

    If more wait than decode, it may take longer in this proportion. Where most of a step's time
    does not depend on its tokens, fewer of them would make decodes hardly quicker, and all wait.
    """
    if not num_decodes:
        return math.inf
    crowding = max(1.0, num_prompts / num_decodes)
    step_s = times.decodes_s * (1.0 + (max_slowdown - 1.0) * crowding)
    least = max(float(_MIN_BESIDE_DECODES), times.mixed_s / times.token_s)
    return max(least, (step_s - times.mixed_s) / times.token_s)


def shared_tokens(times: StepTimes) -> float:
    """Prompt tokens up to which a step takes a part of one more prompt."""
    return max(float(_MIN_SHARED), times.mixed_s / (_FIXED_PART * times.token_s))
