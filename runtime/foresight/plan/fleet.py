"""How many ranks and nodes keep what users are promised: a search over sizes of a service.

Sizes are steps of a ladder: one node with one copy of the model, with two, and so on until it is
full, then full nodes. Whether a step keeps the targets is asked of the timed simulator, which takes
minutes for a long trace; so few steps are tried. The search takes for granted that a larger service
keeps what a smaller one keeps.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from raydix.errors import BadRequest
from raydix.runtime.foresight.simulator.simulation import Outcome

PERCENTILES = ("p50", "p90", "p99")
TIMED_ERROR = (
    "hits of each tier within 2 points of an engine with the same times, first tokens within 11 % "
    "(p50) and 29 % (p90) of an H200's (benchmarks.prediction)"
)
"""What is known of how far the timed depth is off."""
_UNITS = {"ms": 1e-3, "s": 1.0}
_FORM = "ttft or tpot, as ttft_p90=2s, ttft_p50=300ms or tpot_p50=20ms; tpot alone is tpot_p50"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A promise: so many percent of requests have a time of at most so many seconds."""

    what: str
    """`ttft` or `tpot`."""
    percentile: str
    seconds: float

    @property
    def name(self) -> str:
        """Its name, as people give it."""
        return f"{self.what}_{self.percentile}"

    def found(self, outcome: Outcome) -> float | None:
        """The time in a run; None: no request has one."""
        times = outcome.first_token_s if self.what == "ttft" else outcome.next_token_s
        return times.get(self.percentile)

    def is_kept(self, outcome: Outcome) -> bool:
        """Whether a run keeps it; what has no such time keeps nothing."""
        found = self.found(outcome)
        return found is not None and found <= self.seconds

    def require_times(self, outcome: Outcome) -> None:
        """Raise BadRequest if all requests are answered, and none has two tokens where that counts.

        A larger service would change nothing of that.
        """
        has_none = self.what == "tpot" and self.found(outcome) is None
        if has_none and not outcome.failures:
            raise BadRequest(
                f"--slo has {self.name}, the time from one token to the next, and no answer has "
                f"two tokens: {outcome.num_cut_answers:,} of {outcome.num_requests:,} end where "
                "the context does, the others where the trace says. Leave tpot out, raise "
                "model.max_model_len, or give a trace with an output_length of 2 or more."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """A size of a service."""

    num_nodes: int
    lanes_per_node: int
    """The copies of the model on each node."""
    ranks_per_lane: int = 1

    @property
    def ranks_per_node(self) -> int:
        """The ranks of a node, each on a GPU of its own."""
        return self.lanes_per_node * self.ranks_per_lane

    @property
    def num_ranks(self) -> int:
        """The ranks of all nodes together."""
        return self.num_nodes * self.ranks_per_node


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What a size of a service would do, and whether that is enough."""

    fleet: Fleet
    outcome: Outcome
    targets: tuple[Target, ...]

    @property
    def is_enough(self) -> bool:
        """Whether it keeps every target and answers every request."""
        return not self.outcome.failures and all(
            target.is_kept(self.outcome) for target in self.targets
        )

    def figures(self) -> dict[str, Any]:
        """It under names that programs read."""
        return {
            "nodes": self.fleet.num_nodes,
            "ranks_per_node": self.fleet.ranks_per_node,
            "ranks": self.fleet.num_ranks,
            "is_enough": self.is_enough,
            "failures": self.outcome.failures,
            "hit_fraction": self.outcome.hit_fraction,
            "ttft_s": self.outcome.first_token_s,
            "tpot_s": self.outcome.next_token_s,
        }


def parse_target(text: str) -> Target:
    """A target as people give it. Raises BadRequest."""
    name, _, value = text.partition("=")
    what, _, percentile = name.partition("_")
    unit = "ms" if value.endswith("ms") else "s"
    try:
        seconds = float(value.removesuffix(unit)) * _UNITS[unit]
    except ValueError:
        seconds = 0.0
    if name == "tpot":
        percentile = "p50"
    is_known = what in ("ttft", "tpot") and percentile in PERCENTILES
    if not (is_known and 0 < seconds < float("inf")):
        raise BadRequest(
            f"--slo is {text!r}; expected a percentile ({', '.join(PERCENTILES)}) of {_FORM}, with "
            "a time above 0."
        )
    return Target(what=what, percentile=percentile, seconds=seconds)


def fleet_of(step: int, max_lanes_per_node: int, ranks_per_lane: int = 1) -> Fleet:
    """The size of a service that is a step of the ladder; the first step is 1."""
    return Fleet(
        num_nodes=max(1, step - max_lanes_per_node + 1),
        lanes_per_node=min(step, max_lanes_per_node),
        ranks_per_lane=ranks_per_lane,
    )


def next_step(tried: Mapping[int, bool], num_steps: int) -> int | None:
    """The step to try next, of a ladder of so many; None: what there is to know is known.

    tried: whether each step that was tried was enough. As long as none is, the next one is twice as
    high; then the middle between the highest that is not enough and the lowest that is.
    """
    enough = min((step for step, is_enough in tried.items() if is_enough), default=None)
    below = [step for step in tried if enough is None or step < enough]
    too_small = max(below, default=0)
    if enough is not None:
        return None if enough - too_small == 1 else (too_small + enough) // 2
    return None if too_small >= num_steps else min(max(1, 2 * too_small), num_steps)


def search(
    simulate: Callable[[Fleet], Outcome],
    targets: tuple[Target, ...],
    *,
    max_nodes: int,
    max_lanes_per_node: int,
    ranks_per_lane: int = 1,
) -> Iterator[Trial]:
    """Try sizes until the smallest that keeps the targets is known, or none up to the bound does.

    `simulate` says what a size would do; trials come one by one.
    """
    num_steps = max_lanes_per_node + max_nodes - 1
    tried: dict[int, bool] = {}
    while (step := next_step(tried, num_steps)) is not None:
        fleet = fleet_of(step, max_lanes_per_node, ranks_per_lane)
        trial = Trial(fleet=fleet, outcome=simulate(fleet), targets=targets)
        tried[step] = trial.is_enough
        yield trial


def smallest(trials: list[Trial]) -> Trial | None:
    """The smallest size that is enough; None: none is."""
    enough = [trial for trial in trials if trial.is_enough]
    return min(enough, key=lambda trial: trial.fleet.num_ranks, default=None)
