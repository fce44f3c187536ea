"""Where a step group's experts should be: pure, but slow, and so worked out in another process.

Legend: L layers with experts, E experts, P seats of all ranks.
"""

import dataclasses
import io
import zipfile
from dataclasses import dataclass
from typing import Any, BinaryIO, assert_never

import numpy as np
from numpy.typing import NDArray

from raydix.moe.eplb import eplb_placement
from raydix.moe.expert_time import ExpertTime, imbalance, rank_costs
from raydix.moe.placement import FloatArray, Int32Array, Placement
from raydix.moe.planner import Gate, PlannerLimits, num_moves, rebalance
from raydix.runtime.config.policies import Rebalance


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExpertFacts:
    """What a plan depends on beside demand: numbers of the model, the device and the settings."""

    policy: Rebalance
    num_ranks: int
    spare_per_rank: int
    time: ExpertTime
    copy_bytes_per_s: float
    """The speed, in bytes per second, at which one rank copies experts from the host store."""
    stable_steps: int
    """The number of steps for which demand is expected to stay as it is."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlanningWanted:
    """What a plan is to be made of; `number` tells this request for one from later ones."""

    number: int
    current: Placement
    rows_per_step_LE: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExpertPlan:
    """The result of planning where experts go."""

    placement: Placement | None
    """Where experts should be; None if moving them does not pay."""
    num_moves: int = 0
    imbalance_before: float = 1.0
    """The predicted time of the layers, divided by what it would be if all ranks took the mean."""
    imbalance_after: float = 1.0


def plan_experts(current: Placement, rows_LE: FloatArray, facts: ExpertFacts) -> ExpertPlan:
    """Plan where experts go, from the rows of one step on all ranks (`rows_LE`). Deterministic."""
    costs_CLEN = facts.time.replica_seconds(rows_LE, facts.num_ranks)
    before = imbalance(rank_costs(current, costs_CLEN))
    match facts.policy:
        case Rebalance.NONE:
            return ExpertPlan(placement=None, imbalance_before=before, imbalance_after=before)
        case Rebalance.DEEPSEEK:
            wanted = eplb_placement(
                rows_LE,
                facts.num_ranks,
                seats_per_rank=current.seats_per_rank,
                spare_seats=facts.spare_per_rank,
            )
            after = imbalance(rank_costs(wanted, costs_CLEN))
            moves = num_moves(current, wanted)
        case Rebalance.INCREMENTAL:
            plan = rebalance(current, costs_CLEN, PlannerLimits(spare_seats=facts.spare_per_rank))
            gate = Gate(stable_steps=facts.stable_steps, copy_bytes_per_s=facts.copy_bytes_per_s)
            if not gate.is_worth(plan, expert_bytes=facts.time.expert_bytes):
                return ExpertPlan(placement=None, imbalance_before=before, imbalance_after=before)
            wanted, moves, after = plan.placement, plan.num_moves, plan.imbalance_after
        case _:
            assert_never(facts.policy)

    is_same = np.array_equal(wanted.experts_LP, current.experts_LP)
    return ExpertPlan(
        placement=None if is_same else wanted,
        num_moves=moves,
        imbalance_before=before,
        imbalance_after=after,
    )


def pack_question(current: Placement, rows_LE: FloatArray, facts: ExpertFacts) -> bytes:
    """Pack the arguments of `plan_experts` for `answer`."""
    return _pack(
        experts_LP=current.experts_LP,
        num_experts=current.num_experts,
        rows_LE=rows_LE,
        policy=facts.policy.value,
        num_ranks=facts.num_ranks,
        spare_per_rank=facts.spare_per_rank,
        copy_bytes_per_s=facts.copy_bytes_per_s,
        stable_steps=facts.stable_steps,
        **{f"time_{name}": value for name, value in dataclasses.asdict(facts.time).items()},
    )


def answer(question: BinaryIO, reply: BinaryIO) -> None:
    """Carry out `plan_experts` in this process, for another one."""
    values = _unpack(question.read())
    time = {name[5:]: value for name, value in values.items() if name.startswith("time_")}
    num_ranks = values["num_ranks"]
    facts = ExpertFacts(
        policy=Rebalance(values["policy"]),
        num_ranks=num_ranks,
        spare_per_rank=values["spare_per_rank"],
        time=ExpertTime(**time),
        copy_bytes_per_s=values["copy_bytes_per_s"],
        stable_steps=values["stable_steps"],
    )
    current = Placement(values["experts_LP"], values["num_experts"], num_ranks)
    plan = plan_experts(current, values["rows_LE"], facts)

    nothing: Int32Array = np.empty((0, 0), np.int32)
    reply.write(
        _pack(
            experts_LP=nothing if plan.placement is None else plan.placement.experts_LP,
            num_moves=plan.num_moves,
            imbalance_before=plan.imbalance_before,
            imbalance_after=plan.imbalance_after,
        )
    )


def unpack_reply(reply: bytes, current: Placement) -> ExpertPlan:
    """Unpack what `answer` wrote about `current`. Raises ValueError if the bytes are cut short."""
    values = _unpack(reply)
    experts_LP = values.pop("experts_LP")
    placement = None
    if experts_LP.size:
        placement = Placement(experts_LP, current.num_experts, current.num_ranks)
    return ExpertPlan(placement=placement, **values)


def _pack(**values: NDArray[Any] | float | str) -> bytes:
    file = io.BytesIO()
    np.savez(file, **values)  # type: ignore[arg-type]
    return file.getvalue()


def _unpack(data: bytes) -> dict[str, Any]:
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            return {name: array if array.ndim else array.item() for name, array in arrays.items()}
    except (OSError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{len(data)} bytes are no whole answer: {error}") from error
