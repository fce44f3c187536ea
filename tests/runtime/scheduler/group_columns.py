"""What the plans of a step group say of each other."""

from collections import defaultdict
from collections.abc import Sequence

from raydix.runtime.messages.plan import StepPlan
from raydix.runtime.scheduler.events import Effect, SendPlan
from raydix.runtime.scheduler.settings import SchedulerSettings


def check_group_columns(settings: SchedulerSettings, effects: Sequence[Effect]) -> None:
    """Every lane of a group gets each step at once, with the rows and tokens of all of them."""
    width = settings.lanes_per_group
    steps: defaultdict[tuple[int, int], dict[int, StepPlan]] = defaultdict(dict)
    for effect in effects:
        if isinstance(effect, SendPlan):
            steps[effect.lane // width, effect.plan.step][effect.lane] = effect.plan

    for (group, step), plans in steps.items():
        lanes = list(range(group * width, (group + 1) * width))
        assert list(plans) == lanes, f"step {step} goes to lanes {list(plans)} of {lanes}"
        rows = [len(plan.row_slots) for plan in plans.values()]
        tokens = [int(plan.row_num_tokens.sum()) for plan in plans.values()]
        for plan in plans.values():
            assert plan.group_rows.tolist() == (rows if width > 1 else [])
            assert plan.group_tokens.tolist() == (tokens if width > 1 else [])
