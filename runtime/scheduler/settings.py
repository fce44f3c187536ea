"""The values that the Scheduler's core decides by, derived once from the configuration."""

from dataclasses import dataclass
from enum import StrEnum

from raydix.runtime.config.kv_layout import KvLayout


class Policy(StrEnum):
    """Order of the waiting queue."""

    FCFS = "fcfs"
    LPM = "lpm"


class WritePolicy(StrEnum):
    """When a page is copied from L1 to L2."""

    WRITE_THROUGH = "write_through"
    WRITE_THROUGH_SELECTIVE = "write_through_selective"
    WRITE_BACK = "write_back"


class PrefetchStrategy(StrEnum):
    """How long a request waits for pages on their way from L3."""

    BEST_EFFORT = "best_effort"
    WAIT_COMPLETE = "wait_complete"
    TIMEOUT = "timeout"


class LoadPolicy(StrEnum):
    """Whether pages found in L2 are loaded or computed again."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefetchSettings:
    """`cap_at_recompute`: the timeout also ends when computing the missing tokens would have taken
    as long.
    """

    strategy: PrefetchStrategy = PrefetchStrategy.TIMEOUT
    base_s: float = 1.0
    per_1k_tokens_s: float = 0.25
    cap_at_recompute: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSettings:
    """All counts are per lane (data-parallel rank) unless they say otherwise."""

    layout: KvLayout
    num_lanes: int
    num_pages: int
    max_model_len: int
    vocab_size: int = 2**31 - 1
    """Token ids are below; as large as can be where the model is not known."""
    ranks_per_lane: int = 1
    max_running_requests: int = 64
    max_waiting_requests: int = 1024
    """In the whole replica."""
    prefill_budget_tokens: int = 2048
    """Prompt tokens per step, charged in whole pages."""
    chunked_prefill: bool = True
    """False: a prompt is computed in one step; the budget bounds a step, but its first prompt is
    always admitted.
    """
    policy: Policy = Policy.LPM
    eviction: str = "lru"
    prefix_caching: bool = True
    has_host_memory: bool = True
    launch_s: float = 0.0
    """Host time to enqueue a step that waits for a load: it is sent so much sooner."""
    min_part_bytes: int = 8 << 20
    """Pages from L3 go on to L1 while others are awaited once they are so many: smaller copies are
    slow ones.
    """
    load: LoadPolicy = LoadPolicy.ALWAYS
    write_policy: WritePolicy = WritePolicy.WRITE_THROUGH
    write_threshold: int = 2
    prefetch: PrefetchSettings = PrefetchSettings()
    lookup_deadline_s: float = 0.05
    """HostMemory counts as silent when it has not answered for so long."""
    step_deadline_s: float = 30.0
    ageing_s: float = 10.0
    """Who arrives in a later span of so many seconds starts one priority level behind for each."""
    start_prefill_tokens_per_s: float = 50_000.0
    start_load_bytes_per_s: float = 10e9

    @property
    def page_size(self) -> int:
        """Tokens per page."""
        return self.layout.page_size
