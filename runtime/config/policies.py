"""The policies that a configuration chooses by name; whoever carries one out takes it from here."""

from enum import StrEnum


class SchedulingPolicy(StrEnum):
    """Order of the waiting queue."""

    FCFS = "fcfs"
    LPM = "lpm"
    ROUTING_KEY = "routing_key"
    SHORTEST_PREFILL = "shortest_prefill"
    HRRN = "hrrn"
    DFS_WEIGHT = "dfs_weight"


class EngineRole(StrEnum):
    """What an engine of several does for a request, where an ingress can choose."""

    PREFILL = "prefill"
    DECODE = "decode"
    BOTH = "both"


class EvictionPolicy(StrEnum):
    """What leaves L1, L2 and a bounded L3 first; `cache/eviction_policies.py` has the keys."""

    LRU = "lru"
    LFU = "lfu"
    FIFO = "fifo"
    MRU = "mru"
    FILO = "filo"
    SLRU = "slru"
    PRIORITY = "priority"
    REUSE = "reuse"
    TLRU = "tlru"


class KvDtype(StrEnum):
    """What keys and values are cached as; auto: as the model computes them."""

    AUTO = "auto"
    FP8_E4M3 = "fp8_e4m3"


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


class QuantizationWay(StrEnum):
    """What becomes of the quantised weights of a checkpoint."""

    AUTO = "auto"
    RESTORE = "restore"
    NATIVE = "native"


class DispatchBackend(StrEnum):
    """What carries rows to experts on other ranks, of what is no plugin."""

    AUTO = "auto"
    GLOO = "gloo"
    NCCL = "nccl"
    SYMMETRIC = "symmetric"
    DEEPEP = "deepep"


class Rebalance(StrEnum):
    """How experts follow their load from rank to rank."""

    NONE = "none"
    INCREMENTAL = "incremental"
    DEEPSEEK = "deepseek"


class Overlap(StrEnum):
    """Whether one half of a step computes while the other's rows travel."""

    AUTO = "auto"
    ON = "on"
    OFF = "off"


class ToolFormatName(StrEnum):
    """How the model writes calls of tools; auto: as its chat template says."""

    AUTO = "auto"
    HERMES = "hermes"
    LLAMA = "llama"
    QWEN_CODER = "qwen_coder"
    MISTRAL = "mistral"
    DEEPSEEK = "deepseek"
    GLM = "glm"
    KIMI = "kimi"
    MINIMAX = "minimax"
    HARMONY = "harmony"


class ReasoningFormatName(StrEnum):
    """How the model sets reasoning apart; auto: as its chat template says; none: it does not."""

    AUTO = "auto"
    NONE = "none"
    THINK = "think"
    KIMI = "kimi"
    MISTRAL = "mistral"
    HARMONY = "harmony"


class RoutingPolicyName(StrEnum):
    """How one of several engines is chosen for a request."""

    KV = "kv"
    """Where its first token is predicted to come soonest, by what each engine holds and has to do.
    """
    SESSION = "session"
    """Where the session's name says, or else what the prompt begins with."""
    ROUND_ROBIN = "round_robin"
    """One after the other."""
