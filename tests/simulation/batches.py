"""What must hold of a decision about several events at once."""

from collections.abc import Sequence

from raydix.runtime.scheduler import events


class PlannedTooSoon(AssertionError):
    """A plan was made before all had been heard that the core was told before it decided."""


def check_plans(heard: Sequence[events.Event], effects: Sequence[events.Effect]) -> None:
    """Raise PlannedTooSoon if a plan is for a rank that was known to be lost."""
    lost = {event.connection for event in heard if isinstance(event, events.RankLost)}
    for effect in effects:
        if isinstance(effect, events.SendPlan) and not lost.isdisjoint(effect.connections):
            raise PlannedTooSoon(f"plan {effect.plan.step} of lane {effect.lane}")
