"""A profile's times from what an engine has taken for requests of several sizes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from raydix.runtime.foresight.simulator.profile import StepTimes


@dataclass(frozen=True, slots=True)
class PromptTime:
    """The device time of a prompt that was computed whole, with nobody beside it."""

    num_tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class DecodeTime:
    """The device time of a step in which so many requests decode."""

    num_rows: int
    seconds: float


def fit_steps(prompts: Sequence[PromptTime], decodes: Sequence[DecodeTime]) -> StepTimes:
    """The times of steps that come closest to what was measured; none is below 0."""
    rows = np.array([[1.0, each.num_rows] for each in decodes])
    fixed_s, decode_row_s = _fit(rows, np.array([each.seconds for each in decodes]))

    sizes = np.array([float(each.num_tokens) for each in prompts])
    columns = np.stack([np.ones_like(sizes), sizes, sizes * sizes / 2], axis=1)
    seconds = np.array([each.seconds for each in prompts])
    prompt_s, prompt_token_s, prompt_pair_s = _fit(columns, seconds)

    fitted = columns @ np.array([prompt_s, prompt_token_s, prompt_pair_s])
    ratios = np.log(np.maximum(seconds, 1e-9) / np.maximum(fitted, 1e-9))
    return StepTimes(
        fixed_s=fixed_s,
        prompt_token_s=prompt_token_s,
        prompt_pair_s=prompt_pair_s,
        decode_row_s=decode_row_s,
        prompt_fixed_s=max(0.0, prompt_s - fixed_s),
        spread=min(2.0, float(ratios.std())),
    )


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
