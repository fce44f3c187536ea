"""Settings of the cores, from the configuration and what GPU actors have loaded. Pure."""

from raydix.runtime.cache.host.settings import HostSettings, StorageSettings
from raydix.runtime.cache.host.window_ends import make_rule
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.config.kv_layout import KvLayout
from raydix.runtime.scheduler.settings import PrefetchSettings, SchedulerSettings

_LOOKUP_DEADLINE_S = {"cuda": 0.05, "cpu": 0.5}
"""HostMemory answers within a millisecond, but on cpu it shares the cores with the model."""

_LAUNCH_S = {"cuda": 0.005, "cpu": 0.0}
"""Enqueueing the layers of an eager step one by one: 6 ms for 16 of them on an H200's host,
2026-11-21.
"""

_MIN_PART_BYTES = {"cuda": 8 << 20, "cpu": 0}
"""Copies by the host are no faster for being large."""


def scheduler_settings(
    config: EngineConfig,
    layout: KvLayout,
    num_pages: tuple[int, ...],
    max_model_len: int,
    vocab_size: int,
) -> SchedulerSettings:
    """Settings of the Scheduler's core. num_pages: usable L1 pages of each group per rank."""
    cache, scheduler = config.cache, config.scheduler
    chunk = scheduler.chunked_prefill_tokens

    return SchedulerSettings(
        layout=layout,
        num_lanes=config.parallel.dp,
        ranks_per_lane=config.parallel.tp,
        lanes_per_group=config.parallel.lanes_per_group,
        num_pages=num_pages,
        max_model_len=max_model_len,
        vocab_size=vocab_size,
        max_running_requests=scheduler.max_running_requests,
        max_waiting_requests=scheduler.max_waiting_requests,
        prefill_budget_tokens=scheduler.max_prefill_tokens if chunk is None else chunk,
        chunked_prefill=chunk is not None,
        policy=scheduler.policy,
        eviction=cache.eviction,
        prefix_caching=cache.prefix_caching,
        has_host_memory=config.has_l2,
        launch_s=_LAUNCH_S[config.model.device],
        lookup_deadline_s=_LOOKUP_DEADLINE_S[config.model.device],
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


def host_settings(config: EngineConfig, layout: KvLayout, *, has_storage: bool) -> HostSettings:
    """Settings of the HostMemory core. `has_storage`: whether there is L3 now."""
    return HostSettings(
        page_size=config.cache.page_size,
        rule=make_rule(layout),
        storage=StorageSettings(min_tokens=config.cache.prefetch.min_tokens),
        has_storage=has_storage,
    )
