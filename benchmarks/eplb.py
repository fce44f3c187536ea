"""Plan the places of experts along traces of drifting demand: how even, how many moves, how long.

    python -m benchmarks.eplb

A trace starts with demand from Gamma(0.6) in every layer; before each of its steps all demand is
multiplied by lognormal noise of the given sigma, so drift adds up. The first placement is that of
DeepSeek's EPLB (global). At each step the incremental planner starts from its own last placement,
and the reference, from nothing, is compared with that as well: `moved` are experts that come to a
rank that lacks them, by the number of places. `balance` is the mean over layers of the mean rank by
the costliest; the reference's counts a second copy on a rank, which a placement leaves out. Figures
of a trace are the worst of its steps, times the median. The incremental planner keeps one more seat
of each rank empty, for migrations. Each plan is carried out, too, by ranks to which all happens at
once: the Scheduler's longest step of that, and taking the plan up, are what streams wait for.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from time import perf_counter

import numpy as np

from benchmarks.records.command_line import add_keep, count, make_parser, run, seed
from benchmarks.records.record import Figure, report
from raydix.moe.demand import balance, rank_demand
from raydix.moe.eplb import eplb_placement, plan_eplb
from raydix.moe.expert_time import replica_rows
from raydix.moe.migration import Migration, Pacing
from raydix.moe.placement import FloatArray, Placement
from raydix.moe.planner import PlannerLimits, num_moves, rebalance

MAX_PLAN_S = 0.6
MAX_STEP_MS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """A model, its ranks, and how the demand for its experts drifts."""

    num_layers: int
    num_experts: int
    num_places: int
    num_ranks: int
    noise: float
    min_balance: float | None = None
    max_moved: float | None = None

    @property
    def name(self) -> str:
        """The beginning of the names of this trace's figures."""
        return (
            f"{self.num_layers} x {self.num_experts} to {self.num_places} on {self.num_ranks} "
            f"ranks, noise {self.noise:g}"
        )

    def demand(self, num_steps: int, seed: int) -> Iterator[FloatArray]:
        """The demand of the first placement, then that of every step."""
        rng = np.random.default_rng(seed)
        shape = self.num_layers, self.num_experts
        demand_LE = rng.gamma(0.6, size=shape)
        yield demand_LE
        for _ in range(num_steps):
            demand_LE = demand_LE * np.exp(self.noise * rng.standard_normal(shape))
            yield demand_LE


_QWEN = {"num_layers": 48, "num_experts": 128, "num_places": 144, "num_ranks": 8}
_DEEPSEEK = {"num_layers": 58, "num_experts": 256, "num_places": 288, "num_ranks": 8}
_FEW = {"num_layers": 48, "num_experts": 128, "num_places": 136, "num_ranks": 4}
TRACES = (
    Trace(**_QWEN, noise=0.1, min_balance=0.985, max_moved=0.05),
    Trace(**_QWEN, noise=0.4, min_balance=0.98, max_moved=0.1),
    Trace(**_DEEPSEEK, noise=0.1),
    Trace(**_DEEPSEEK, noise=0.4),
    Trace(**_FEW, noise=0.1),
    Trace(**_FEW, noise=0.4),
)


@dataclass(frozen=True, slots=True)
class Planned:
    """One plan of one step."""

    balance: float
    moved: float
    plan_s: float
    longest_s: float
    """The most that the Scheduler takes at a time to carry it out."""


def carry_out(current: Placement, wanted: Placement) -> float:
    """The most seconds that the Scheduler takes at a time to move all experts."""
    migration = Migration(current, pacing=Pacing(max_copies_per_step=2, max_open_copies=4))
    started = perf_counter()
    migration.start(wanted)
    longest_s = perf_counter() - started
    for step in itertools.count():
        if not migration.is_open:
            return longest_s
        started = perf_counter()
        orders = migration.plan_step(step)
        longest_s = max(longest_s, perf_counter() - started)
        for copy in orders.copies:
            migration.copied(copy.physical // current.seats_per_rank, (copy,))
        for rank in range(current.num_ranks):
            migration.finished(rank, step)
    raise AssertionError("it ends")


def follow(
    trace: Trace, *, num_steps: int, seed: int
) -> tuple[list[float], list[Planned], list[Planned]]:
    """Step by step: the balance before, the incremental plan, the reference's."""
    seats = trace.num_places // trace.num_ranks + 1
    demand = trace.demand(num_steps, seed)
    placement = eplb_placement(next(demand), trace.num_ranks, seats_per_rank=seats, spare_seats=1)
    stale, incremental, reference = [], [], []

    for demand_LE in demand:
        stale.append(balance(rank_demand(placement, demand_LE)).mean_of_layers)
        started = perf_counter()
        plan = rebalance(placement, replica_rows(demand_LE, trace.num_ranks), PlannerLimits())
        plan_s = perf_counter() - started

        started = perf_counter()
        found = plan_eplb(
            demand_LE, trace.num_places, num_groups=1, num_nodes=1, num_gpus=trace.num_ranks
        )
        reference_s = perf_counter() - started
        share_LP = np.take_along_axis(demand_LE / found.num_replicas_LE, found.experts_LP, axis=1)
        demand_LR = share_LP.reshape(len(demand_LE), trace.num_ranks, -1).sum(axis=2)
        other = eplb_placement(demand_LE, trace.num_ranks, seats_per_rank=seats, spare_seats=1)

        num_places = trace.num_layers * trace.num_places
        evenness = balance(rank_demand(plan.placement, demand_LE)).mean_of_layers
        longest_s = carry_out(placement, plan.placement)
        incremental.append(Planned(evenness, plan.num_moves / num_places, plan_s, longest_s))
        moved, longest_s = num_moves(placement, other) / num_places, carry_out(placement, other)
        evenness = balance(demand_LR).mean_of_layers
        reference.append(Planned(evenness, moved, reference_s, longest_s))
        placement = plan.placement
    return stale, incremental, reference


def measure(trace: Trace, *, num_steps: int, seed: int) -> list[Figure]:
    """The worst of all steps, beside the reference's worst; of times the medians."""
    stale, incremental, reference = follow(trace, num_steps=num_steps, seed=seed)
    beside = "DeepSeek's EPLB"
    return [
        Figure(name=f"{trace.name}: balance before", value=min(stale), unit="mean by max"),
        Figure(
            name=f"{trace.name}: balance",
            value=min(plan.balance for plan in incremental),
            unit="mean by max",
            min_value=trace.min_balance,
            baseline=min(plan.balance for plan in reference),
            baseline_name=beside,
        ),
        Figure(
            name=f"{trace.name}: moved",
            value=max(plan.moved for plan in incremental) * 100,
            unit="% of places",
            max_value=None if trace.max_moved is None else trace.max_moved * 100,
            baseline=max(plan.moved for plan in reference) * 100,
            baseline_name=beside,
        ),
        Figure(
            name=f"{trace.name}: time of a plan",
            value=median(plan.plan_s for plan in incremental),
            unit="s",
            max_value=MAX_PLAN_S,
            baseline=median(plan.plan_s for plan in reference),
            baseline_name=beside,
        ),
        Figure(
            name=f"{trace.name}: longest step of the Scheduler that carries a plan out",
            value=median(plan.longest_s for plan in incremental) * 1e3,
            unit="ms",
            max_value=MAX_STEP_MS,
            baseline=median(plan.longest_s for plan in reference) * 1e3,
            baseline_name=beside,
        ),
    ]


def main() -> int:
    """Follow all traces."""
    parser = make_parser(__doc__)
    parser.add_argument("--steps", type=count, default=8, help="of each trace")
    parser.add_argument("--seed", type=seed, default=0)
    add_keep(parser)
    arguments = parser.parse_args()

    figures = [
        figure
        for trace in TRACES
        for figure in measure(trace, num_steps=arguments.steps, seed=arguments.seed)
    ]
    config = {"steps": arguments.steps, "seed": arguments.seed}
    return report("eplb", config, figures, keep_in=arguments.keep)


if __name__ == "__main__":
    run(main)
