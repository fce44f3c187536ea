"""Lanes that share experts and step together, as a workload may have them."""

import random
from dataclasses import replace

from raydix.moe.expert_time import ExpertTime
from raydix.runtime.config.policies import Rebalance
from raydix.runtime.scheduler.expert_plans import ExpertFacts
from raydix.runtime.scheduler.settings import ExpertSettings, SchedulerSettings

_GROUPED_FRACTION = 0.3
"""The part of workloads that have lanes which step together."""


def with_step_groups(draw: random.Random, settings: SchedulerSettings) -> SchedulerSettings:
    """Often the same settings where lanes share experts: all of them, or two groups of two."""
    if draw.random() >= _GROUPED_FRACTION:
        return settings
    num_lanes, lanes_per_group = draw.choice([(2, 2), (3, 3), (4, 4), (4, 2)])
    settings = replace(
        settings,
        num_lanes=num_lanes,
        lanes_per_group=lanes_per_group,
        ranks_per_lane=min(settings.ranks_per_lane, 2),
    )
    return with_experts(draw, settings)


def with_experts(draw: random.Random, settings: SchedulerSettings) -> SchedulerSettings:
    """The same settings where the ranks of a step group share experts, which move often."""
    time = ExpertTime(
        expert_bytes=1 << 20,
        memory_bytes_per_s=1e12,
        row_flops=1e6,
        flops_per_s=1e12,
        row_bytes=1 << 10,
        link_bytes_per_s=1e11,
    )
    facts = ExpertFacts(
        policy=draw.choice([Rebalance.INCREMENTAL, Rebalance.DEEPSEEK]),
        num_ranks=settings.ranks_per_group,
        spare_per_rank=draw.choice([1, 1, 2]),
        time=time,
        copy_bytes_per_s=1e10,
        stable_steps=1_000_000,
    )
    experts = ExpertSettings(
        num_layers=draw.choice([1, 3]),
        num_experts=draw.choice([4, 6, 9]),
        redundant_per_rank=draw.choice([0, 0, 1, 2]),
        facts=facts,
        rebalance_interval_steps=draw.choice([4, 16]),
        load_interval_steps=draw.choice([1, 3]),
        copies_per_step=draw.choice([1, 2]),
    )
    return replace(settings, experts=experts)
