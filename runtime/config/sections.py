"""The sections of the configuration, each with the rules that it can check alone."""

from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from raydix.kernels.pages.page_codec import Codec
from raydix.runtime.config.events import EventsSection
from raydix.runtime.config.l2 import L2Section
from raydix.runtime.config.l3 import L3Section
from raydix.runtime.config.policies import (
    EvictionPolicy,
    KvDtype,
    LoadPolicy,
    PrefetchStrategy,
    QuantizationWay,
    ReasoningFormatName,
    SchedulingPolicy,
    ToolFormatName,
    WritePolicy,
)
from raydix.runtime.config.values import Choice, Count, Fraction, Port, Seconds, Section


class ModelSection(Section):
    """Which model, and how it is held."""

    path: str = Field(
        description="Folder of a Hugging Face checkpoint (config.json and safetensors), or a model "
        "on the Hub: ORG/NAME, or ORG/NAME@REVISION."
    )
    load_format: Literal["auto", "dummy"] = Field(
        "auto",
        description="dummy: random weights for a folder that holds config.json alone, "
        "to measure speed.",
    )
    device: Literal["cpu", "cuda"] = Field("cpu", description="Where the model runs.")
    dtype: Literal["float32", "bfloat16", "float16"] = Field(
        "float32",
        description="Type of weights, activations and, unless cache.kv_dtype says otherwise, "
        "cached KV. Default on cuda: bfloat16.",
    )
    quantization: Choice[QuantizationWay] = Field(
        QuantizationWay.AUTO,
        description="What becomes of quantised weights. restore: floats of model.dtype. native: "
        "float8 stays, and is multiplied by inputs rounded to float8; four bits stay, and count as "
        "the floats that they stand for. auto: float8 stays where model.dtype is bfloat16 and the "
        "GPU has kernels for it (H100, H200); all else is restored.",
    )
    max_model_len: Count | None = Field(
        None,
        description="Most tokens of prompt and output. "
        "null: as many as the model and the cache allow.",
    )
    deterministic: bool = Field(
        False,
        description="Equal requests have equal tokens and logprobs, bit for bit, whatever the "
        "cache holds, however prompts are cut and whoever else is served. Costs some speed.",
    )
    kernels: str | None = Field(
        None,
        description="Folder that `raydix warm-up --out` has written: compiled kernels for this "
        "model, GPU and versions. What is of others is named in the log and left aside. "
        "null: kernels are compiled on this machine.",
    )
    tool_format: Choice[ToolFormatName] = Field(
        ToolFormatName.AUTO,
        description="How the model writes calls of tools. auto: as its chat template says.",
    )
    reasoning_format: Choice[ReasoningFormatName] = Field(
        ReasoningFormatName.AUTO,
        description="How the model sets its reasoning apart. auto: as its chat template says; "
        "none: reasoning stays part of the text.",
    )


class ParallelSection(Section):
    """How many copies of the model serve, and over how many devices each is spread."""

    dp: Count = Field(
        1, description="Data-parallel ranks: whole copies of the model, each with its own L1."
    )
    tp: Count = Field(
        1,
        description="Tensor-parallel ranks per copy, each with a part of every layer. "
        "Divides the query heads, and divides the KV heads or is a multiple of them.",
    )
    ep: Count = Field(
        1,
        description="Ranks that share the experts of a layer, each with whole ones of its own; "
        "they all step together. 1: each copy cuts every expert among its tensor-parallel ranks. "
        "Otherwise dp x tp.",
    )

    @property
    def num_ranks(self) -> int:
        """Devices in all."""
        return self.dp * self.tp

    @property
    def lanes_per_group(self) -> int:
        """Copies of the model that step together."""
        return self.dp if self.ep > 1 else 1

    @property
    def ranks_per_group(self) -> int:
        """Devices that step together, and whose processes live and die together."""
        return self.lanes_per_group * self.tp

    @model_validator(mode="after")
    def _experts_are_on_all_ranks(self) -> Self:
        if self.ep not in (1, self.num_ranks):
            raise ValueError(
                f"parallel.ep is {self.ep}; expected 1 or dp x tp = {self.num_ranks}. Set "
                f"parallel.ep to {self.num_ranks}, or change parallel.dp or parallel.tp."
            )
        return self


class L1Section(Section):
    """Pages in the memory of each rank's device."""

    num_pages: Count | None = Field(
        None,
        description="Usable pages per rank, of layers that see everything; if there are none, "
        "of those with the widest window. Default on cpu: 1024.",
    )
    memory_fraction: Annotated[float, Field(gt=0.0, lt=1.0)] | None = Field(
        None,
        description="cuda only: part of the device's memory for weights and pages. "
        "Default on cuda: 0.85.",
    )
    tokens_per_window: Count = Field(
        4096,
        description="Layers with a sliding window have room for one window per so many tokens "
        "of the other layers' pages, layers that keep states for three states, as long as states "
        "take a third of L1 at most. Of a small L1 windows and states of 16 requests take half.",
    )
    copy_delay_s: Seconds = Field(
        0.0,
        description="cpu only: each page copy takes a random time of up to this long, "
        "to show every order.",
    )

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if (self.num_pages is None) == (self.memory_fraction is None):
            raise ValueError(
                "cache.l1 needs exactly one of num_pages and memory_fraction. "
                "Set the other to null."
            )
        return self


class PrefetchSection(Section):
    """How long a request waits for pages on their way from L3."""

    strategy: Choice[PrefetchStrategy] = Field(
        PrefetchStrategy.TIMEOUT,
        description="best_effort: no wait; wait_complete: for all pages; "
        "timeout: for a bounded time.",
    )
    base_s: Seconds = Field(1.0, description="timeout: the fixed part of the bound.")
    per_1k_tokens_s: Seconds = Field(
        0.25, description="timeout: the part per 1024 tokens of the prompt."
    )
    min_tokens: Annotated[int, Field(ge=0)] = Field(
        64,
        description="Fewer tokens than this, from the first missing one to the last that storage "
        "has, are not fetched.",
    )
    cap: Literal["recompute", "none"] = Field(
        "recompute",
        description="recompute: never wait longer than computing the tokens would take. "
        "none: no such cap.",
    )


class RetentionSection(Section):
    """What clients may ask for by hints: that pages of their sessions are kept."""

    max_kept_fraction: Fraction = Field(
        0.25, description="Most of a tier's pages that are kept for one tenant; the oldest go."
    )
    max_keep_s: Annotated[float, Field(gt=0.0)] = Field(
        3600.0, description="Longest time for which pages are kept; who asks for more gets this."
    )


class CacheSection(Section):
    """The three tiers and the rules between them."""

    page_size: int = Field(
        16,
        description="Tokens per page. Default on cuda: 64.",
        json_schema_extra={"enum": [2**power for power in range(9)]},
    )
    l1: L1Section = Field(
        default_factory=lambda: L1Section(num_pages=1024), description="Pages on the device."
    )
    l2: L2Section | None = Field(
        default_factory=lambda: L2Section(ratio=4.0),
        description="The node's arena. null: no L2, hence no L3.",
    )
    l3: L3Section | None = Field(None, description="Storage that outlives the engine. null: none.")
    events: EventsSection | None = Field(
        None,
        description="Tells others which pages each tier gets and loses. null: nobody is told.",
    )
    kv_dtype: Choice[KvDtype] = Field(
        KvDtype.AUTO,
        description="What keys and values are cached as, in all tiers. auto: model.dtype; "
        "fp8_e4m3: half of bf16, rounded as they are computed.",
    )
    codec: Choice[Codec] = Field(
        Codec.NONE,
        description="How pages are held in L2 and L3; "
        "int8 and fp8 halve bf16 pages and round them.",
    )
    prefix_caching: bool = Field(
        True, description="false: nothing is matched, kept, loaded or stored."
    )
    eviction: Choice[EvictionPolicy] = Field(
        EvictionPolicy.LRU, description="Which cached prefixes leave L1 first."
    )
    load: Choice[LoadPolicy] = Field(
        LoadPolicy.ALWAYS,
        description="Load pages found in L2; auto: only if faster than computing them; what seems "
        "slower is tried for up to 1 % of the time. Default on cuda: auto.",
    )
    write_policy: Choice[WritePolicy] = Field(
        WritePolicy.WRITE_THROUGH,
        description="When a page is copied to L2: once computed, once reused, or before eviction.",
    )
    write_threshold: Count = Field(
        2, description="write_through_selective: copied from this many requests on."
    )
    prefetch: PrefetchSection = Field(default_factory=PrefetchSection, description="Reads from L3.")
    retention: RetentionSection = Field(
        default_factory=RetentionSection, description="What hints of clients may keep."
    )

    @field_validator("page_size")
    @classmethod
    def _power_of_two(cls, page_size: int) -> int:
        if not 1 <= page_size <= 256 or page_size & (page_size - 1):
            raise ValueError(
                f"cache.page_size is {page_size}; expected a power of two in 1..256. "
                "Set cache.page_size to 16 or 64."
            )
        return page_size

    @model_validator(mode="after")
    def _l3_has_an_l2(self) -> Self:
        if self.l3 is not None and self.l2 is None:
            raise ValueError(
                "cache.l3 needs cache.l2, through which its pages pass. "
                "Set cache.l2, or cache.l3 to null."
            )
        return self

    @model_validator(mode="after")
    def _codec_has_an_effect(self) -> Self:
        if self.codec is not Codec.NONE and (self.l2 is None or not self.prefix_caching):
            missing = "cache.l2" if self.l2 is None else "cache.prefix_caching"
            raise ValueError(
                f"cache.codec {self.codec} has no effect without {missing}: "
                f"it encodes pages of L2 and L3. Set {missing}, or cache.codec to none."
            )
        return self

    @model_validator(mode="after")
    def _is_rounded_once(self) -> Self:
        if self.codec is not Codec.NONE and self.kv_dtype is not KvDtype.AUTO:
            raise ValueError(
                f"cache.codec is {self.codec}, and cache.kv_dtype {self.kv_dtype}, which takes a "
                "byte per number in all tiers already. Set cache.codec to none, or cache.kv_dtype "
                "to auto."
            )
        return self

    @model_validator(mode="after")
    def _write_threshold_has_an_effect(self) -> Self:
        is_set = "write_threshold" in self.model_fields_set
        if is_set and self.write_policy is not WritePolicy.WRITE_THROUGH_SELECTIVE:
            raise ValueError(
                f"cache.write_threshold has no effect with cache.write_policy {self.write_policy}. "
                "Remove it, or set cache.write_policy to write_through_selective."
            )
        return self


class SchedulerSection(Section):
    """Order and size of batches. Budgets are per data-parallel rank."""

    policy: Choice[SchedulingPolicy] = Field(
        SchedulingPolicy.LPM,
        description="Which waiting request has its turn first: fcfs: by arrival; lpm: the longest "
        "cached prefix; routing_key: the keys of running requests; shortest_prefill: the fewest "
        "tokens to compute; hrrn: the longest wait per token to compute; dfs_weight: the prefix "
        "with which most waiting requests begin.",
    )
    max_prefill_tokens: Count = Field(
        16384,
        description="Prompt tokens per step when chunking is off; "
        "the first prompt is always admitted.",
    )
    chunked_prefill_tokens: Count | None = Field(
        2048, description="Prompt tokens per step, a multiple of the page size. null: no chunking."
    )
    max_decode_slowdown: Annotated[float, Field(ge=1.0)] = Field(
        12.0,
        description="A step that computes prompts takes at most so many times as long as its "
        "decodes alone would. Less: steadier output; more: earlier first tokens.",
    )
    short_prompt_fraction: Annotated[float, Field(ge=0.0, le=0.9)] = Field(
        0.25,
        description="Of each step that computes a part of a long prompt, this much is for shorter "
        "prompts behind it. More: they wait less; less: the long one ends sooner.",
    )
    max_running_requests: Annotated[int, Field(ge=1, le=65536)] = Field(
        64, description="Requests that a rank generates for at once."
    )
    max_waiting_requests: Count = Field(
        1024, description="Waiting requests beyond which new ones are refused."
    )
    max_asleep_wait_s: Annotated[float, Field(ge=0.0, le=86_400.0)] = Field(
        30.0,
        description="Seconds for which a request may wait for an engine that sleeps, or falls "
        "asleep, to wake; 0: it is refused at once.",
    )

    max_drain_s: Annotated[float, Field(ge=0.0, le=86_400.0)] = Field(
        30.0,
        description="Seconds for which requests that have begun may go on once the engine is to "
        "sleep; those that are left go on after the wake, with the same tokens.",
    )

    @property
    def prefill_budget(self) -> int:
        """Tokens of prompts in a step of a data-parallel rank; one not cut may have more."""
        return self.chunked_prefill_tokens or self.max_prefill_tokens

    def max_step_tokens(self, max_model_len: int) -> int:
        """Most tokens that a data-parallel rank computes in one step."""
        # Without chunks, a prompt beyond the budget has a step of its own.
        unchunked = max(self.max_prefill_tokens, max_model_len)
        return (self.chunked_prefill_tokens or unchunked) + self.max_running_requests


class RaySection(Section):
    """What an engine wants of Ray, most of it of a cluster that it starts for itself."""

    export_metrics: bool = Field(
        True,
        description="Give the engine's metrics to Ray's agent, which shows them to whoever reaches "
        "its port, on the host's own address and without a key. false: only `/metrics` of HTTP has "
        "them.",
    )

    metrics_port: Port | None = Field(
        None,
        description="Where Ray serves the engine's metrics. null: a free one; `raydix serve` then "
        "takes 9477 if that is free.",
    )
    dashboard_port: Port | None = Field(
        None, description="Where Ray serves its dashboard, to this host alone. null: no dashboard."
    )
