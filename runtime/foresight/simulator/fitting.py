"""A profile's times from what an engine has taken for requests of several sizes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from raydix.runtime.foresight.simulator.profile import CopyTimes, StepTimes

_LINKS_OF_ENGINE = 1.5
"""How many `link_s` pass from a request's arrival at the Scheduler to its first token, besides the
step: a plan is half of one on its way, a result another half, and it waits as
long for its turn.
"""
_LINKS_OF_CLIENT = 3.0
"""How many pass for the client: the request, too, is on its way and waits, and the answer is on its
way.
"""


@dataclass(frozen=True, slots=True)
class PromptTime:
    """The device time of the only step of a prompt, with nobody beside it."""

    num_tokens: int
    """The tokens that were computed."""
    seconds: float
    num_cached: int = 0
    """The tokens before them."""


@dataclass(frozen=True, slots=True)
class DecodeTime:
    """The device time of some steps in which requests decode."""

    num_rows: int
    """The tokens of all these steps."""
    seconds: float
    num_steps: int = 1
    context: float = 0.0
    """The tokens that a row looks back on, on average."""


@dataclass(frozen=True, slots=True)
class FirstTokenTime:
    """What a first token takes besides its step, with nobody beside it."""

    num_tokens: int
    """The tokens of the prompt."""
    client_s: float
    """The time that the client sees."""
    engine_s: float
    """From the request's arrival at the Scheduler."""


@dataclass(frozen=True, slots=True)
class LoadTime:
    """The time of a load."""

    num_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class MessageTimes:
    """The times of a profile that are no device's."""

    link_s: float
    client_s: float
    client_token_s: float


def fit_steps(
    alone: Sequence[PromptTime],
    decodes: Sequence[DecodeTime],
    beside: Sequence[PromptTime] = (),
) -> StepTimes:
    """The times of steps that come closest to what was measured; none is below 0.

    `alone`: prompts that came to an idle device; `beside`: those that came while others decoded,
    whose steps the host had enqueued before the device was free.
    """
    launch_s, prompts = _without_launches(alone, beside)
    # Where all look back as far, what a row takes for that is a part of what it takes at all.
    has_contexts = len({each.context for each in decodes}) > 1
    rows = np.array(
        [
            [each.num_steps, each.num_rows, has_contexts * each.num_rows * each.context]
            for each in decodes
        ]
    )
    seconds = np.array([each.seconds for each in decodes])
    fixed_s, decode_row_s, decode_context_s = _fit(rows, seconds)

    sizes = np.array([float(each.num_tokens) for each in prompts])
    cached = np.array([float(each.num_cached) for each in prompts])
    columns = np.stack([np.ones_like(sizes), sizes, sizes * (cached + sizes / 2)], axis=1)
    seconds = np.array([each.seconds for each in prompts])
    prompt_s, prompt_token_s, prompt_pair_s = _fit(columns, seconds)

    fitted = columns @ np.array([prompt_s, prompt_token_s, prompt_pair_s])
    ratios = np.log(np.maximum(seconds, 1e-9) / np.maximum(fitted, 1e-9))
    return StepTimes(
        fixed_s=fixed_s,
        prompt_token_s=prompt_token_s,
        prompt_pair_s=prompt_pair_s,
        decode_row_s=decode_row_s,
        decode_context_s=decode_context_s,
        prompt_fixed_s=max(0.0, prompt_s - fixed_s),
        launch_s=launch_s,
        spread=min(2.0, float(ratios.std())),
    )


def _without_launches(
    alone: Sequence[PromptTime], beside: Sequence[PromptTime]
) -> tuple[float, list[PromptTime]]:
    """How much longer a prompt takes an idle device, and prompts as a busy one would take them."""
    idle_s = {
        size: float(np.median([each.seconds for each in alone if each.num_tokens == size]))
        for size in {each.num_tokens for each in alone}
    }
    busy, longer_s = [], []
    for each in beside:
        if not each.num_cached and each.num_tokens in idle_s:
            size_s = idle_s.pop(each.num_tokens)
            # A busy device takes no longer: what says so was disturbed.
            each = replace(each, seconds=min(each.seconds, size_s))
            longer_s.append(size_s - each.seconds)
        busy.append(each)

    launch_s = float(np.median(longer_s)) if longer_s else 0.0
    # Those of sizes that were seen on an idle device alone.
    others = [
        replace(each, seconds=max(1e-6, each.seconds - launch_s))
        for each in alone
        if each.num_tokens in idle_s
    ]
    return launch_s, [*busy, *others]


def fit_messages(times: Sequence[FirstTokenTime]) -> MessageTimes:
    """What messages and clients take, so that a first token's time is what was measured."""
    columns = np.array([[1.0, each.num_tokens] for each in times])
    whole_s, token_s = _fit(columns, np.array([each.client_s for each in times]))
    engine_s = float(np.median([each.engine_s for each in times]))
    link_s = min(max(0.0, engine_s) / _LINKS_OF_ENGINE, whole_s / _LINKS_OF_CLIENT)
    return MessageTimes(link_s, max(0.0, whole_s - _LINKS_OF_CLIENT * link_s), token_s)


def fit_loads(loads: Sequence[LoadTime]) -> CopyTimes | None:
    """The times of loads; None if none that take time were seen."""
    seen = [each for each in loads if each.num_bytes > 0 and each.seconds > 0]
    if not seen:
        return None
    if len({each.num_bytes for each in seen}) > 1:
        columns = np.array([[1.0, each.num_bytes] for each in seen])
        fixed_s, byte_s = _fit(columns, np.array([each.seconds for each in seen]))
        if byte_s:
            return CopyTimes(fixed_s=fixed_s, bytes_per_s=1 / byte_s)
    total_s = sum(each.seconds for each in seen)
    return CopyTimes(bytes_per_s=sum(each.num_bytes for each in seen) / total_s)


def _fit(columns: NDArray[np.float64], values: NDArray[np.float64]) -> list[float]:
    """Least squares, each measurement by its own size, without what would be below 0."""
    weights = 1 / np.maximum(values, 1e-9)
    kept = list(range(columns.shape[1]))
    while kept:
        found, *_ = np.linalg.lstsq(
            columns[:, kept] * weights[:, None], values * weights, rcond=None
        )
        if (found >= 0).all():
            break
        kept.pop(int(np.argmin(found * columns[:, kept].max(axis=0))))
    result = [0.0] * columns.shape[1]
    for place, value in zip(kept, found if kept else (), strict=True):
        result[place] = float(value) if math.isfinite(value) else 0.0
    return result
