"""The values that the Scheduler's core decides by, derived once from the configuration."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from raydix.runtime.config.checkpoint_distance import checkpoint_distance
from raydix.runtime.config.kv_layout import KvLayout
from raydix.runtime.config.kv_shard import KvShard
from raydix.runtime.config.policies import (
    EngineRole,
    EvictionPolicy,
    LoadPolicy,
    PrefetchStrategy,
    SchedulingPolicy,
    WritePolicy,
)
from raydix.runtime.scheduler.expert_plans import ExpertFacts
from raydix.runtime.scheduler.prompt_shares import StepRoom

_FEW_PAGES = 8
"""The number of pages that are published together, and evicted together (ADR 23)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefetchSettings:
    """How long a request waits for pages from L3."""

    strategy: PrefetchStrategy = PrefetchStrategy.TIMEOUT
    base_s: float = 1.0
    per_1k_tokens_s: float = 0.25
    cap_at_recompute: bool = True
    """Whether a wait ends once it would take less time to compute the missing tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertSettings:
    """How a step group's experts are divided among its ranks, and follow their load."""

    num_layers: int
    """The number of layers that have experts."""
    num_experts: int
    redundant_per_rank: int
    facts: ExpertFacts
    rebalance_interval_steps: int
    load_interval_steps: int
    copies_per_step: int


@dataclass(frozen=True, kw_only=True)
class SchedulerSettings:
    """All counts are per lane (data-parallel rank) unless they say otherwise."""

    layout: KvLayout
    num_lanes: int
    num_pages: tuple[int, ...]
    """Usable L1 pages of each KV group."""
    max_model_len: int
    role: EngineRole = EngineRole.BOTH
    """What clients that route are told that the engine is for."""
    vocab_size: int = 2**31 - 1
    """The number of token ids, all of which are below; the largest int32 if it is not known."""
    ranks_per_lane: int = 1
    lanes_per_group: int = 1
    """The number of lanes that share experts, and so step together; it divides `num_lanes`."""
    experts: ExpertSettings | None = None
    """The experts of each step group; None if its lanes share no experts, or have none."""
    max_running_requests: int = 64
    max_repeats: int = 0
    """The most steps for which a plan of decodes stands behind its own, where one rank steps alone.
    """
    max_waiting_requests: int = 1024
    """The most requests that wait in the whole replica."""
    prefill_budget_tokens: int = 2048
    """The most prompt tokens per step, charged in whole pages."""
    chunked_prefill: bool = True
    """Whether a prompt may be cut; if not, one step computes it, even beyond the budget."""
    max_decode_slowdown: float = 12.0
    """The most time of a step with prompts, as a multiple of that of its decodes alone."""
    short_prompt_fraction: float = 0.25
    """The part of a step that cuts a prompt which shorter prompts behind it may have."""
    policy: SchedulingPolicy = SchedulingPolicy.LPM
    eviction: EvictionPolicy = EvictionPolicy.LRU
    max_kept_fraction: float = 0.25
    """The most of a lane's pages that one tenant's sessions have kept."""
    max_keep_s: float = 3600.0
    """Seconds for which a hint counts at most."""
    prefix_caching: bool = True
    few_pages_part: int = 256
    """The most pages of a pool that are published late together, or evicted ahead of need together:
    one in so many of the pool.
    """
    has_host_memory: bool = True
    launch_s: float = 0.0
    """Host time in seconds to enqueue a step: one that waits for a load is sent so much earlier."""
    min_part_bytes: int = 8 << 20
    """The least size of a copy in which pages from L3 go on to L1 while others are awaited."""
    load: LoadPolicy = LoadPolicy.ALWAYS
    write_policy: WritePolicy = WritePolicy.WRITE_THROUGH
    write_threshold: int = 2
    prefetch: PrefetchSettings = PrefetchSettings()
    lookup_deadline_s: float = 0.05
    """Seconds for which HostMemory may owe an answer before it counts as silent."""
    step_deadline_s: float = 30.0
    first_step_deadline_s: float = 600.0
    """Seconds for the first step of ranks after they attach, in which they may compile kernels."""
    max_asleep_wait_s: float = 30.0
    """Seconds for which a request may wait for an engine that sleeps, or is about to, to wake."""
    max_drain_s: float = 30.0
    """Seconds for which requests may go on once the engine is to sleep; then they wait for the
    wake.
    """
    ageing_s: float = 10.0
    """Seconds of later arrival by which a request starts one priority level behind."""
    lpm_span_s: float = 0.2
    """Seconds of arrivals within which longer matches go first. With 10 s, short ones waited 4.7 s
    under turns of 32 streams, and nothing was gained.
    """
    start_prefill_tokens_per_s: float = 50_000.0
    """The start rate, before a step is observed: rather too high, see `TimePredictor`."""
    start_prefill_s: float = 0.0
    """Seconds of a step with prompts that do not depend on its tokens, before one is observed."""
    start_load_bytes_per_s: float = 10e9

    @cached_property
    def page_size(self) -> int:
        """Tokens per page."""
        return self.layout.page_size

    @cached_property
    def ranks_per_group(self) -> int:
        """Ranks that step together, and live and die together."""
        return self.lanes_per_group * self.ranks_per_lane

    @cached_property
    def num_groups(self) -> int:
        """The number of KV groups."""
        return len(self.layout.groups)

    @cached_property
    def reaches(self) -> tuple[int | None, ...]:
        """Per KV group, the pages that hold the window of a prefix's last token; None: all."""
        return self.layout.reaches

    @cached_property
    def has_windows(self) -> bool:
        """Whether some KV group looks back over a window."""
        return any(reach is not None for reach in self.reaches)

    @cached_property
    def has_full(self) -> bool:
        """Whether some KV group looks back at everything."""
        return None in self.reaches

    @cached_property
    def has_states(self) -> bool:
        """Whether some KV group keeps a state, which is there after certain pages alone."""
        return self.layout.has_states

    def reusable_pages(self, num_tokens: int) -> int:
        """The most pages that a prompt of so many tokens can take from a cache.

        The last token is computed in any case: over its own page, unless it needs the state before.
        """
        return (num_tokens - self.has_states) // self.page_size

    @cached_property
    def checkpoint_distance(self) -> int | None:
        """Pages from one regular checkpoint of windows to the next; None without windows."""
        return checkpoint_distance(self.layout)

    @cached_property
    def keeps_windows(self) -> bool:
        """Whether windows before checkpoints are copied to L2."""
        return self.has_windows and self.has_host_memory and self.prefix_caching

    @cached_property
    def publish_tokens(self) -> int:
        """A request that decodes publishes its full pages whenever so many tokens are computed.

        To enter eight pages into the tree takes hardly longer than one. Pages behind a window go
        back when they are published: where there are windows each page is published by itself.
        """
        few = 1 if self.has_windows else min(self.few_pages)
        return max(1, few) * self.page_size

    @cached_property
    def few_pages(self) -> tuple[int, ...]:
        """Per KV group, the number of pages handled together, as one alone costs as much.

        No more than a small part of the pool.
        """
        return tuple([min(_FEW_PAGES, pages // self.few_pages_part) for pages in self.num_pages])

    @cached_property
    def step_room(self) -> StepRoom:
        """The room for prompt tokens of a step that nothing else bounds."""
        return StepRoom(
            budget_tokens=self.prefill_budget_tokens,
            shared_tokens=self.prefill_budget_tokens,
            most_tokens=self.prefill_budget_tokens if self.chunked_prefill else None,
            page_size=self.page_size,
            short_fraction=self.short_prompt_fraction,
        )

    @cached_property
    def max_step_tokens(self) -> int:
        """Tokens of one request that a step computes at most."""
        return self.prefill_budget_tokens if self.chunked_prefill else self.max_model_len

    @cached_property
    def max_pages(self) -> int:
        """The pages of the smallest pool that bounds a prefix: of a FULL group, if there is one."""
        pools = zip(self.num_pages, self.reaches, strict=True)
        return min([pages for pages, reach in pools if reach is None] or self.num_pages)

    @cached_property
    def loaded_bytes(self) -> tuple[int, ...]:
        """Per KV group, the bytes that one rank loads of one page."""
        return KvShard(layout=self.layout, num_ranks=self.ranks_per_lane).loaded_bytes

    def bytes_of(self, num_pages: Iterable[int]) -> int:
        """The bytes that one rank loads for so many pages of each KV group."""
        pairs = zip(self.loaded_bytes, num_pages, strict=True)
        return sum(num_bytes * num for num_bytes, num in pairs)
