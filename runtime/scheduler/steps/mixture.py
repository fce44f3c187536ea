"""How many tokens of prompts a step computes, alone or beside decodes.

All that take part in a step wait for its end: a longer one makes decodes slower and lets a prompt
wait for others. A shorter one computes its tokens at a higher price, as some of a step's time does
not depend on their number. Two rules follow. Beside decodes a step takes at most so many times as
long as they would alone, but for what it takes without a token of a prompt: it may take that again
for tokens. And several prompts share a step up to the size with which, on average, prompts end
soonest.
"""

import math
from dataclasses import dataclass

_MIN_TOKENS = 512
"""The least limit on prompt tokens of a step, and on those of prompts that share it. With fewer
tokens its time hardly depends on their number: prompts would wait longer and decodes gain little.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """What steps with the same decodes are predicted to take."""

    decodes_s: float
    """The predicted seconds of a step without prompts."""
    mixed_s: float
    """The predicted seconds of a step with prompts, before any prompt token is counted."""
    token_s: float
    """The predicted seconds that each prompt token adds."""


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
    least = max(float(_MIN_TOKENS), times.mixed_s / times.token_s)
    return max(least, (step_s - times.mixed_s) / times.token_s)


def shared_tokens(times: StepTimes, waiting_tokens: float) -> float:
    """Prompt tokens up to which further prompts join a step, if so many tokens of prompts wait.

    Steps of S tokens that take f, and c for each token, compute T tokens in T / S (f + c S). A
    prompt ends after half of that on average, and half a step: with S = sqrt(T f / c) that is
    least. Smaller steps are dearer by the token; in larger ones prompts wait for each other.
    """
    return max(float(_MIN_TOKENS), math.sqrt(waiting_tokens * times.mixed_s / times.token_s))
