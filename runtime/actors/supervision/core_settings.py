"""Settings of the cores, from the configuration and what GPU actors have loaded. Pure."""

from dataclasses import dataclass

from raydix.moe.expert_time import ExpertTime
from raydix.runtime.actors.gpu_model import ExpertsShape
from raydix.runtime.cache.host.settings import HostSettings, StorageSettings
from raydix.runtime.cache.host.window_ends import make_rule
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.config.kv_layout import KvLayout
from raydix.runtime.config.policies import EvictionPolicy
from raydix.runtime.scheduler.expert_plans import ExpertFacts
from raydix.runtime.scheduler.settings import ExpertSettings, PrefetchSettings, SchedulerSettings

_LOOKUP_DEADLINE_S = {"cuda": 0.05, "cpu": 0.5}
"""HostMemory answers within a millisecond, but on cpu it shares the cores with the model."""

_LAUNCH_S = {"cuda": 0.005, "cpu": 0.0}
"""Enqueueing the layers of an eager step one by one: 6 ms for 16 of them on an H200's host,
2026-11-21.
"""

_START_LOAD_BYTES_PER_S = {"cuda": 50e9, "cpu": 10e9}
"""The speed of loads that is believed at first: that of a fast link. Only loads teach how fast this
link is, so a belief that is too high is soon put right, and with one that is too low everything
would be computed, for ever.
"""

_START_PREFILL_TOKENS_PER_S = {"cuda": 200_000.0, "cpu": 50_000.0}
"""The speed of prefill that is believed at first: that of small models. What is believed too quick
is put right by the first steps; what is believed too slow lets a step's fixed time be held for that
of its tokens, so that nobody shares it.
"""

_MAX_REPEATS = {"cuda": 0, "cpu": 15}
"""The steps for which a plan of decodes stands behind its own. Half of them last longer than the
Scheduler takes for the next plan on a slow host; pages are reserved for all. On a GPU each step has
a plan of its own: nothing was gained on one H100 (ADR 39).
"""

_MIN_PART_BYTES = {"cuda": 8 << 20, "cpu": 0}
"""Copies by the host are no faster for being large."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _ExpertSpeed:
    """What plans of experts reckon with; only the ratios matter much."""

    memory_bytes_per_s: float
    flops_per_s: float
    link_bytes_per_s: float
    copy_bytes_per_s: float
    """The speed of copies from the host store into seats, through pinned halves."""


_EXPERT_SPEED = {
    "cuda": _ExpertSpeed(
        memory_bytes_per_s=3.5e12, flops_per_s=600e12, link_bytes_per_s=300e9, copy_bytes_per_s=10e9
    ),
    "cpu": _ExpertSpeed(
        memory_bytes_per_s=20e9, flops_per_s=50e9, link_bytes_per_s=2e9, copy_bytes_per_s=2e9
    ),
}


def scheduler_settings(
    config: EngineConfig,
    layout: KvLayout,
    num_pages: tuple[int, ...],
    max_model_len: int,
    vocab_size: int,
    experts: ExpertsShape | None = None,
) -> SchedulerSettings:
    """Settings of the Scheduler's core. num_pages: usable L1 pages of each group per rank.

    `experts`: those that ranks share; None if there are none.
    """
    cache, scheduler = config.cache, config.scheduler

    return SchedulerSettings(
        role=config.role,
        layout=layout,
        num_lanes=config.parallel.dp,
        ranks_per_lane=config.parallel.tp,
        lanes_per_group=config.parallel.lanes_per_group,
        experts=None if experts is None else _expert_settings(config, experts),
        num_pages=num_pages,
        max_model_len=max_model_len,
        vocab_size=vocab_size,
        max_running_requests=scheduler.max_running_requests,
        max_waiting_requests=scheduler.max_waiting_requests,
        max_asleep_wait_s=scheduler.max_asleep_wait_s,
        max_drain_s=scheduler.max_drain_s,
        max_repeats=_MAX_REPEATS[config.model.device],
        prefill_budget_tokens=scheduler.prefill_budget,
        chunked_prefill=scheduler.chunked_prefill_tokens is not None,
        max_decode_slowdown=scheduler.max_decode_slowdown,
        short_prompt_fraction=scheduler.short_prompt_fraction,
        policy=scheduler.policy,
        eviction=cache.eviction,
        max_kept_fraction=cache.retention.max_kept_fraction,
        max_keep_s=cache.retention.max_keep_s,
        prefix_caching=cache.prefix_caching,
        has_host_memory=config.has_l2,
        launch_s=_LAUNCH_S[config.model.device],
        lookup_deadline_s=_LOOKUP_DEADLINE_S[config.model.device],
        start_prefill_tokens_per_s=_START_PREFILL_TOKENS_PER_S[config.model.device],
        start_prefill_s=_LAUNCH_S[config.model.device],
        start_load_bytes_per_s=_START_LOAD_BYTES_PER_S[config.model.device],
        min_part_bytes=_MIN_PART_BYTES[config.model.device],
        load=cache.load,
        write_policy=cache.write_policy,
        write_threshold=cache.write_threshold,
        prefetch=PrefetchSettings(
            strategy=cache.prefetch.strategy,
            base_s=cache.prefetch.base_s,
            per_1k_tokens_s=cache.prefetch.per_1k_tokens_s,
            cap_at_recompute=cache.prefetch.cap == "recompute",
        ),
    )


def _expert_settings(config: EngineConfig, shape: ExpertsShape) -> ExpertSettings:
    experts = config.experts
    speed = _EXPERT_SPEED[config.model.device]
    time = ExpertTime(
        expert_bytes=shape.expert_bytes,
        memory_bytes_per_s=speed.memory_bytes_per_s,
        row_flops=2.0 * shape.expert_parameters,
        flops_per_s=speed.flops_per_s,
        # There and back.
        row_bytes=2 * shape.row_bytes,
        link_bytes_per_s=speed.link_bytes_per_s,
    )

    facts = ExpertFacts(
        policy=experts.rebalance,
        num_ranks=config.parallel.ep,
        spare_per_rank=experts.spare_per_rank,
        time=time,
        copy_bytes_per_s=speed.copy_bytes_per_s,
        # It has to pay until the next look at least.
        stable_steps=experts.rebalance_interval_steps,
    )
    return ExpertSettings(
        num_layers=shape.num_layers,
        num_experts=shape.num_experts,
        redundant_per_rank=experts.redundant_per_rank,
        facts=facts,
        rebalance_interval_steps=experts.rebalance_interval_steps,
        load_interval_steps=experts.load_interval_steps,
        copies_per_step=experts.copies_per_step,
    )


def host_settings(config: EngineConfig, layout: KvLayout) -> HostSettings:
    """Settings of the HostMemory core, which has L3 if somebody attaches it."""
    cache = config.cache
    return HostSettings(
        page_size=cache.page_size,
        eviction=EvictionPolicy.LRU if cache.l2 is None else cache.l2.eviction,
        max_kept_fraction=cache.retention.max_kept_fraction,
        rule=make_rule(layout),
        storage=StorageSettings(
            min_tokens=cache.prefetch.min_tokens,
            max_told_objects=0 if cache.events is None else cache.events.max_l3_pages,
        ),
    )
