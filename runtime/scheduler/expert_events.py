"""What ranks and planners say about experts."""

from raydix.errors import AccountingError
from raydix.runtime.messages.plan import ExpertsCopied, StepResult
from raydix.runtime.scheduler.events import ExpertsPlanned, PlanExperts
from raydix.runtime.scheduler.replica import Replica
from raydix.runtime.scheduler.step_group import StepGroup


def on_expert_step(replica: Replica, group: StepGroup, result: StepResult) -> None:
    """A rank has done a step: with it the change of placement that it carried, if any."""
    experts = group.experts
    if experts is None:
        return
    experts.note_step(result.rank - group.ranks.start, result.step, result.expert_loads)
    wanted = experts.take_asked()
    if wanted is not None:
        index = replica.step_groups.index(group)
        replica.emit(PlanExperts(group=index, wanted=wanted))


def on_experts_copied(group: StepGroup, done: ExpertsCopied) -> None:
    """Copies have landed on a rank."""
    if group.experts is None:
        raise AccountingError(f"rank {done.rank} copied experts, and has all to itself")
    group.experts.note_copied(done.rank - group.ranks.start, done.copy_ids)


def on_experts_planned(replica: Replica, event: ExpertsPlanned) -> None:
    """A planner has answered."""
    experts = replica.step_groups[event.group].experts
    assert experts is not None, "only groups with experts ask"
    experts.note_plan(event.number, event.plan)
