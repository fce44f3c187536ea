"""What scheduling policies make of one trace at loads below and above what an engine can do."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.simulator import PROFILE, TOKENS_PER_SIMULATED, service_of
from raydix.runtime.config.policies import SchedulingPolicy
from raydix.runtime.foresight.simulator.profile import read_profile
from raydix.runtime.foresight.simulator.requests import ClientRequest, requests_of
from raydix.runtime.foresight.simulator.simulation import Service, Simulation
from raydix.runtime.foresight.simulator.world import Rules
from raydix.runtime.foresight.traces import BLOCK_TOKENS, TraceRequest

LOADS = (0.7, 1.1)
"""Requests that come, as a part of those that can be answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRun:
    """One policy at one load."""

    policy: SchedulingPolicy
    load: float
    capacity: float
    """What the engine can do, in requests per second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOutcome:
    """What clients saw. Times to the first token are in seconds."""

    hit_percent: float
    p50_s: float
    p90_s: float
    longest_s: float
    requests_per_s: float


def service_under(policy: SchedulingPolicy) -> Service:
    """One engine of one rank, with an L2 and an L3."""
    service = service_of(num_nodes=1, num_lanes=1)
    scheduler = replace(service.node.scheduler, policy=policy)
    return replace(service, node=replace(service.node, scheduler=scheduler))


def simulate_queue(requests: Sequence[ClientRequest], policy: SchedulingPolicy) -> QueueOutcome:
    """All requests, each answered. Raises Stuck or WrongAnswer if one is not."""
    rules = Rules(tokens_per_simulated=TOKENS_PER_SIMULATED)
    simulation = Simulation(service_under(policy), read_profile(PROFILE), requests, rules)
    outcome = simulation.run()
    waits_s = [
        answer.first_token_s - answer.asked_s
        for answer in simulation.clients.answers
        if answer.first_token_s is not None
    ]
    if len(waits_s) < len(requests):
        raise RuntimeError(
            f"{len(waits_s)} of {len(requests)} requests were answered; expected all. Failures: "
            f"{outcome.failures}. Let service_of allow for longer prompts or a longer queue."
        )
    return QueueOutcome(
        hit_percent=100 * outcome.hit_fraction,
        p50_s=float(np.percentile(waits_s, 50)),
        p90_s=float(np.percentile(waits_s, 90)),
        longest_s=max(waits_s),
        requests_per_s=len(requests) / outcome.duration_s,
    )


def capacity_of(trace: Sequence[TraceRequest]) -> float:
    """Requests per second while there is always one that waits: under `fcfs`, all come at once."""
    requests = requests_of(trace, BLOCK_TOKENS, is_closed_loop=False)
    at_once = [replace(request, arrival_s=0.0) for request in requests]
    return simulate_queue(at_once, SchedulingPolicy.FCFS).requests_per_s


def at_rate(trace: Sequence[TraceRequest], requests_per_s: float) -> list[ClientRequest]:
    """The same requests in the same order, so much closer to each other or further apart."""
    requests = requests_of(trace, BLOCK_TOKENS, is_closed_loop=False)
    first_s = requests[0].arrival_s
    span_s = requests[-1].arrival_s - first_s
    factor = len(requests) / requests_per_s / span_s
    return [
        replace(request, arrival_s=(request.arrival_s - first_s) * factor) for request in requests
    ]


def run_queue(run: QueueRun, trace: Sequence[TraceRequest]) -> QueueOutcome:
    """What a policy makes of a trace at its load."""
    return simulate_queue(at_rate(trace, run.load * run.capacity), run.policy)
