"""What ranks and planners say about experts."""

from raydix.errors import AccountingError
from raydix.runtime.messages.plan import StepResult
from raydix.runtime.scheduler.events import ExpertsPlanned, PlanExperts
from raydix.runtime.scheduler.ranks.step_group import StepGroup


def on_expert_step(step_group: StepGroup, result: StepResult) -> PlanExperts | None:
    """Take in that a rank has done a step, and what it reports of experts.

    Returns what a planner is asked for, if anything. Raises AccountingError if it has copied
    experts that nobody has told it to.
    """
    experts, rank = step_group.experts, result.rank - step_group.ranks.start
    if experts is None:
        if len(result.copied_experts):
            raise AccountingError(f"rank {result.rank} copied experts, and has all to itself")
        return None
    experts.note_copied(rank, result.copied_experts)
    experts.note_step(rank, result.step, result.expert_demand)
    wanted = experts.take_asked()
    return None if wanted is None else PlanExperts(step_group=step_group.index, wanted=wanted)


def on_experts_planned(step_group: StepGroup, event: ExpertsPlanned) -> None:
    """Take in a planner's answer to a step group."""
    experts = step_group.experts
    assert experts is not None, "only step groups with experts ask"
    experts.note_plan(event.number, event.plan)
