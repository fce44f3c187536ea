"""What the requests in the slots ask of sampling, and the columns that tell it to the device.

The noise of output token i comes from (seed, i) alone, so a row's token does not depend on the
batch, on chunks, or on where the request was resumed.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raydix.kernels.sampling.columns import COLUMN_DTYPES
from raydix.runtime.messages.plan import DeviceSampling
from raydix.runtime.model.logit_rules.rule import Asked, LogitRule
from raydix.runtime.model.logit_rules.table import LOGIT_RULES, LogitRules
from raydix.runtime.model.staging.columns import AnyColumn, Column, Columns

GREEDY_BELOW = 1e-5
"""Temperatures below this are greedy: float32 could not tell the scaled logits apart."""
_ROUNDING = 1 - 2.0**-17
"""Factor on top-p: a sum that misses it by rounding alone counts as reaching it."""
_SMALLEST_TOP_P = 1e-30
"""The least top-p: above zero in float32, so that the most likely token is always kept."""
_GREEDY = DeviceSampling(seed=0)
_NONE: Column = np.zeros(0, dtype=np.int64)
_FEW_ROWS = 4
_MASK64 = (1 << 64) - 1
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX1, _MIX2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingRows:
    """The rows of a step that sample, in row order."""

    slots: Column
    ends: Column
    """Where in the request's tokens the sampled one goes."""
    output_positions: Column
    columns: Columns
    """The columns of `SamplingColumns`, in which adjusted rows are greedy."""
    adjusted: Column
    """Indices of rows whose logits a rule changes first."""
    has_cuts: bool
    """Does one of the rows that are not adjusted cut tokens?"""
    has_logprobs: bool
    """Does one of the rows want logprobs?"""


def _zeros(length: int) -> dict[str, AnyColumn]:
    """Columns of `SamplingColumns` that ask for greedy rows."""
    return {name: np.zeros(length, dtype=dtype) for name, dtype in COLUMN_DTYPES.items()}


SAMPLES_NOTHING = SamplingRows(
    slots=_NONE,
    ends=_NONE,
    output_positions=_NONE,
    columns=_zeros(0),
    adjusted=_NONE,
    has_cuts=False,
    has_logprobs=False,
)


class SlotSampling:
    """Owns: the sampling parameters of each slot, and what they ask of each logit rule."""

    def __init__(self, num_slots: int, rules: LogitRules = LOGIT_RULES) -> None:
        self.rules = rules
        self.of_slot: list[DeviceSampling] = [_GREEDY] * num_slots
        self._asked: list[tuple[Asked[Any] | None, ...]] = [(None,) * len(rules)] * num_slots
        """What each slot asks of each rule."""
        self._adjusted_before = np.zeros(num_slots, dtype=np.int64)
        """Output positions before these are sampled by a rule or more."""
        self._columns = _zeros(num_slots)
        """The columns of each slot, but with the mixed seed in place of a noise key."""
        self._is_cut = np.zeros(num_slots, dtype=np.bool_)
        self._has_logprobs = np.zeros(num_slots, dtype=np.bool_)
        self.has_prompt_logprobs = np.zeros(num_slots, dtype=np.bool_)
        """Which slots' prompts are to be scored."""
        self._is_plain = True
        """No slot asks for more than a temperature."""

    def put(self, slot: int, sampling: DeviceSampling) -> None:
        """Record what the request that has just taken `slot` asks for."""
        self.of_slot[slot] = sampling
        asked = tuple(rule.read(sampling) for rule in self.rules)
        self._asked[slot] = asked
        self._adjusted_before[slot] = max(
            (each.before for each in asked if each is not None), default=0
        )
        for name, value in _column_values(sampling).items():
            self._columns[name][slot] = value
        is_random = sampling.temperature >= GREEDY_BELOW
        self._is_cut[slot] = is_random and (
            sampling.top_k > 0 or sampling.top_p < 1 or sampling.min_p > 0
        )
        self._has_logprobs[slot] = sampling.num_logprobs is not None
        self.has_prompt_logprobs[slot] = sampling.num_prompt_logprobs is not None
        asks = self._is_cut, self._adjusted_before, self._has_logprobs
        self._is_plain = not any(column.any() for column in asks)

    def rows(self, slots: Column, ends: Column, output_positions: Column) -> SamplingRows:
        """What rows of these slots want at these positions."""
        columns = self.columns(slots, output_positions)
        if self._is_plain:
            return SamplingRows(
                slots=slots,
                ends=ends,
                output_positions=output_positions,
                columns=columns,
                adjusted=_NONE,
                has_cuts=False,
                has_logprobs=False,
            )

        is_adjusted = output_positions < self._adjusted_before[slots]
        for column in columns.values():
            column[is_adjusted] = 0
        return SamplingRows(
            slots=slots,
            ends=ends,
            output_positions=output_positions,
            columns=columns,
            adjusted=np.flatnonzero(is_adjusted),
            has_cuts=bool((self._is_cut[slots] & ~is_adjusted).any()),
            has_logprobs=bool(self._has_logprobs[slots].any()),
        )

    def asked(
        self, slots: Column, output_positions: Column
    ) -> Iterator[tuple[LogitRule[Any], dict[int, Any]]]:
        """Each rule, in order, with what those rows ask of it that it concerns, by their index."""
        rows = list(zip(slots.tolist(), output_positions.tolist(), strict=True))
        for index, rule in enumerate(self.rules):
            of_rows = [(self._asked[slot][index], position) for slot, position in rows]
            yield (
                rule,
                {
                    row: asked.kept
                    for row, (asked, position) in enumerate(of_rows)
                    if asked is not None and position < asked.before
                },
            )

    def cuts_any(self, slots: Column) -> bool:
        """Whether one of these slots cuts tokens."""
        return bool(self._is_cut[slots].any())

    def columns(self, slots: Column, output_positions: Column) -> dict[str, AnyColumn]:
        """The columns of `SamplingColumns`, of rows of these slots at these positions."""
        columns = {name: column.take(slots) for name, column in self._columns.items()}
        # The noise of greedy rows is not read.
        if columns["temperatures_R"].any():
            mixed_seeds = columns["noise_keys_R"].view(np.uint64)
            columns["noise_keys_R"] = noise_keys(mixed_seeds, output_positions)
        return columns


def noise_keys(mixed_seeds: NDArray[np.uint64], output_positions: Column) -> Column:
    """Each row's key: of its seed, which `mix` has mixed once, and the output position."""
    if len(mixed_seeds) <= _FEW_ROWS:
        # A dozen array operations take longer than the arithmetic of a few rows.
        sums = zip(mixed_seeds.tolist(), output_positions.tolist(), strict=True)
        return np.array(
            [_mix_one(seed + position) for seed, position in sums], dtype=np.uint64
        ).view(np.int64)
    return mix(mixed_seeds + output_positions.astype(np.uint64)).view(np.int64)


def _mix_one(value: int) -> int:
    """`mix` of one value."""
    value = (value + int(_GOLDEN)) & _MASK64
    value = ((value ^ (value >> 30)) * int(_MIX1)) & _MASK64
    value = ((value ^ (value >> 27)) * int(_MIX2)) & _MASK64
    return value ^ (value >> 31)


def mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's step (Steele 2014); products and sums are modulo 2^64."""
    values = values + _GOLDEN
    values = (values ^ (values >> np.uint64(30))) * _MIX1
    values = (values ^ (values >> np.uint64(27))) * _MIX2
    return values ^ (values >> np.uint64(31))


def _column_values(sampling: DeviceSampling) -> dict[str, float]:
    """The value of each column, with the mixed seed in place of a noise key."""
    if sampling.temperature < GREEDY_BELOW:
        return dict.fromkeys(COLUMN_DTYPES, 0)
    top_p = max(sampling.top_p * _ROUNDING, _SMALLEST_TOP_P) if sampling.top_p < 1 else 1.0
    seed = np.array([sampling.seed & _MASK64], dtype=np.uint64)
    return {
        "noise_keys_R": mix(seed).view(np.int64).item(),
        "temperatures_R": sampling.temperature,
        "top_ks_R": sampling.top_k,
        "top_ps_R": top_p,
        "min_ps_R": sampling.min_p,
    }
