"""Figures of ranks that share experts."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from benchmarks.engine.engines import Answer, Options
from benchmarks.records.record import Figure
from benchmarks.shared_experts.expert_engines import steps_of

MAX_P99_RATIO = 1.1
MAX_GAP_RATIO = 1.5
"""The longest step while experts move, by the p99 of the others."""


def while_moving(
    options: Options, answers: list[Answer], moving: list[tuple[float, float]]
) -> list[Figure]:
    """Steps beside which experts moved, and all others."""
    moved: list[float] = []
    others: list[float] = []
    for start_s, end_s in steps_of(answers):
        is_beside = any(began < end_s and start_s < ended for began, ended in moving)
        (moved if is_beside else others).append(end_s - start_s)
    if len(moved) < 2 or len(others) < 2:
        raise RuntimeError(
            f"experts moved beside {len(moved)} steps and not beside {len(others)}; generate more "
            "tokens"
        )

    p99_s, other_p99_s = (float(np.quantile(each, 0.99)) for each in (moved, others))
    return [
        Figure(
            name="p99 of steps, experts moving over not",
            value=p99_s / other_p99_s,
            unit="1",
            max_value=options.bar(MAX_P99_RATIO),
        ),
        Figure(
            name="longest step while experts move over the others' p99",
            value=max(moved) / other_p99_s,
            unit="1",
            max_value=options.bar(MAX_GAP_RATIO),
        ),
        beside("p99 of steps, experts moving", 1e3 * p99_s, 1e3 * other_p99_s, "ms", than="not"),
        beside("longest step, experts moving", 1e3 * max(moved), 1e3 * max(others), "ms", "not"),
        Figure(name="steps beside moves", value=len(moved), unit="1"),
    ]


def beside(
    name: str, value: float, baseline: float, unit: str = "tokens/s", than: str = "not shared"
) -> Figure:
    """A figure and what it is compared with."""
    return Figure(name=name, value=value, unit=unit, baseline=baseline, baseline_name=than)


def balancedness(stats: Mapping[str, Any]) -> dict[str, float]:
    """How balanced the ranks' loads are, in both ways in which it is counted."""
    ways = ("mean_of_layers", "ratio_of_sums")
    return {way.replace("_", " "): stats["scheduler"][f"expert_balance_{way}"] for way in ways}
