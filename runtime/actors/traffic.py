"""What an engine does, in a line: requests, tokens per second, and where prompts were found."""

import logging

from raydix.runtime.actors.figures_log import News
from raydix.runtime.metrics import Figures, members, number
from raydix.runtime.scheduler.counters import Count

INTERVAL_S = 10.0
_TIERS = {"l1": "L1", "l2": "L2", "peer": "other nodes", "l3": "L3"}
_ALWAYS_TOLD = ("l1", "l2", "l3")


def describe_traffic(before: Figures, now: Figures, seconds: float) -> str | None:
    """The line for the time between two looks at the Scheduler's figures; None if it was idle.

    Of the prompt tokens whose requests were admitted meanwhile it says which tier had them.
    """
    running, waiting = (
        int(number(now.get(f"num_requests_{state}", 0))) for state in ("running", "waiting")
    )
    generated = _grown(before, now, Count.GENERATION_TOKENS)
    sources, earlier = members(now, "prompt_tokens_"), members(before, "prompt_tokens_")
    by_source = {source: tokens - earlier.get(source, 0) for source, tokens in sources.items()}
    prompt = sum(by_source.values())
    if not (running or waiting or generated or prompt):
        return None

    text = (
        f"{running} running, {waiting} waiting; "
        f"prompt {prompt / seconds:,.1f} tokens/s, generated {generated / seconds:,.1f} tokens/s"
    )
    if not prompt:
        return text
    parts = [
        f"{by_source.get(tier, 0) / prompt:.1%} from {name}"
        for tier, name in _TIERS.items()
        if tier in _ALWAYS_TOLD or tier in by_source
    ]
    computed = 1 - sum(by_source.get(tier, 0) for tier in _TIERS) / prompt
    return f"{text}; {', '.join(parts)}, {computed:.1%} computed"


def _grown(before: Figures, now: Figures, name: str) -> float:
    return number(now.get(name, 0)) - number(before.get(name, 0))


class Traffic:
    """Owns: the figures of the last look."""

    def __init__(self) -> None:
        self._last: tuple[Figures, float] | None = None

    def tell(self, figures: Figures, now_s: float) -> News | None:
        """Tell what is new since the last time, as `Teller.tell` says."""
        last, self._last = self._last, (figures, now_s)
        if last is None:
            return None
        before, then_s = last
        text = describe_traffic(before, figures, now_s - then_s)
        return None if text is None else (logging.INFO, text)
