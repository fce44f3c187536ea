"""What is predicted of steps and loads, and what is believed before any is observed.

A wrong belief is refuted as `runtime/routing/predictors.py` says. Who is there to refute it:
- Prompts. A step with prompts takes at least 512 tokens whatever is predicted (`mixture.py`), and
  each shows its time; larger ones are bounded by it. If all prompts are cached, computing one
  instead of loading it is tried (`load_choice.py`).
- Decodes. Every step that decodes shows its time, whatever was predicted.
- Loads. Those believed to be too slow are tried (`load_choice.py`); others show it.
"""

from raydix.runtime.routing.predictors import TimePredictor
from raydix.runtime.scheduler.settings import SchedulerSettings

_START_DECODE_S, _START_DECODE_ROWS_PER_S = 0.01, 25_600.0
"""The start values for steps that only decode, before one is observed: a fixed time, and little
more for each row.
"""
_FULL_LOAD_S = 0.002
"""Seconds after which a load counts in full for the load rate; a quicker one counts less."""


class Rates:
    """What is believed of how long steps and loads take; each predictor owns what it has seen."""

    def __init__(self, settings: SchedulerSettings) -> None:
        self.prefill = TimePredictor(
            settings.start_prefill_tokens_per_s,
            full_amount=settings.prefill_budget_tokens,
            fixed_s=settings.start_prefill_s,
        )
        """How long steps with prompts take, by their tokens."""
        self.decode = TimePredictor(
            _START_DECODE_ROWS_PER_S,
            full_amount=settings.max_running_requests,
            fixed_s=_START_DECODE_S,
        )
        """How long steps that only decode take, by their rows."""
        self.load = TimePredictor(
            settings.start_load_bytes_per_s,
            full_amount=settings.start_load_bytes_per_s * _FULL_LOAD_S,
        )
        """How long loads from L2 take, by the bytes that one rank loads."""
