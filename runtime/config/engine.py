"""The whole configuration: one tree of frozen models, checked as a whole and never changed."""

from typing import Self

from pydantic import Field, model_validator

from raydix.errors import ConfigError
from raydix.kernels.pages.page_codec import Codec
from raydix.runtime.config.experts import ExpertsSection
from raydix.runtime.config.kv_layout import FP8_DTYPE
from raydix.runtime.config.memory_limit import available_memory_bytes
from raydix.runtime.config.policies import EngineRole, KvDtype, QuantizationWay, WritePolicy
from raydix.runtime.config.ports import NamedPorts, find_conflict, ports_of
from raydix.runtime.config.sections import (
    CacheSection,
    ModelSection,
    ParallelSection,
    RaySection,
    SchedulerSection,
)
from raydix.runtime.config.values import Choice, Section

MAX_DETERMINISTIC_TP = 2
"""The ranks whose parts have the same sum in either order."""


class EngineConfig(Section):
    """The whole configuration of one engine."""

    role: Choice[EngineRole] = Field(
        EngineRole.BOTH,
        description="What the engine does among several. prefill: it computes prompts up to their "
        "first token, which another engine goes on from where that is predicted to be worth it. "
        "decode and both: it serves whole requests, and goes on with what others have begun.",
    )
    model: ModelSection
    parallel: ParallelSection = Field(default_factory=ParallelSection)
    experts: ExpertsSection = Field(default_factory=ExpertsSection)
    cache: CacheSection = Field(default_factory=CacheSection)
    scheduler: SchedulerSection = Field(default_factory=SchedulerSection)
    ray: RaySection = Field(default_factory=RaySection)

    @property
    def has_l2(self) -> bool:
        """Whether pages are kept in the host arena."""
        return self.cache.prefix_caching and self.cache.l2 is not None

    @property
    def has_l3(self) -> bool:
        """Whether pages are kept in storage."""
        return self.has_l2 and self.cache.l3 is not None

    @property
    def kv_dtype(self) -> str:
        """What cached keys and values are, by its name in torch."""
        is_fp8 = self.cache.kv_dtype is KvDtype.FP8_E4M3
        return FP8_DTYPE if is_fp8 else self.model.dtype

    @property
    def quantization(self) -> QuantizationWay:
        """How quantised weights are held, if the GPU has kernels for it.

        Products of float8 have no fixed order, and are as exact as bfloat16 at best.
        """
        model = self.model
        is_exact = model.deterministic or model.dtype != "bfloat16"
        if is_exact and model.quantization is QuantizationWay.AUTO:
            return QuantizationWay.RESTORE
        return model.quantization

    @property
    def stores_experts(self) -> bool:
        """Whether the node's memory holds all experts."""
        return self.parallel.ep > 1 and self.experts.host_store

    @property
    def named_ports(self) -> tuple[NamedPorts, ...]:
        """The ports that the engine is told to take, whoever of it listens there."""
        return tuple(ports_of(self.cache, self.parallel, self.ray))

    @property
    def arena_folder(self) -> str | None:
        """The folder in which the arena needs a name, as L3 maps memory by name; None: no name."""
        return None if self.cache.l3 is None else self.cache.l3.arena_folder

    def max_model_len(self, max_position_embeddings: int, num_pages: int | None) -> int:
        """Tokens of prompt and output that a request may have.

        num_pages: pages of context that L1 has room for; None: any number. Raises ConfigError if
        `model.max_model_len` asks for more than the model or the pages can hold.
        """
        asked, page_size = self.model.max_model_len, self.cache.page_size
        if asked is None:
            capacity = max_position_embeddings if num_pages is None else num_pages * page_size
            return min(max_position_embeddings, capacity)

        if asked > max_position_embeddings:
            raise ConfigError(
                f"model.max_model_len is {asked}; the model knows {max_position_embeddings} "
                f"positions. Set model.max_model_len to at most {max_position_embeddings}."
            )
        if num_pages is not None and asked > num_pages * page_size:
            raise ConfigError(_too_long(asked, num_pages, page_size))
        return asked

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        page_size, num_pages = self.cache.page_size, self.cache.l1.num_pages
        chunk = self.scheduler.chunked_prefill_tokens
        if chunk is not None and chunk % page_size:
            raise ValueError(
                f"scheduler.chunked_prefill_tokens is {chunk}; expected a multiple of "
                f"cache.page_size ({page_size}) or null. "
                f"Set it to {-(-chunk // page_size) * page_size}."
            )

        asked = self.model.max_model_len
        if asked is not None and num_pages is not None and asked > num_pages * page_size:
            raise ValueError(_too_long(asked, num_pages, page_size))
        return self

    @model_validator(mode="after")
    def _can_hand_over(self) -> Self:
        if self.role is EngineRole.BOTH:
            return self
        if not self.has_l2:
            raise ValueError(
                f"role is {self.role}, and the engine has no L2, through which pages go from "
                "engine to engine. Set cache.l2 and cache.prefix_caching, or role to both."
            )
        policy = self.cache.write_policy
        if self.role is EngineRole.PREFILL and policy is not WritePolicy.WRITE_THROUGH:
            raise ValueError(
                f"role is prefill, and cache.write_policy {policy}; expected write_through, as "
                "what is computed goes on elsewhere at once. Set cache.write_policy to "
                "write_through, or role to decode or both."
            )
        return self

    @model_validator(mode="after")
    def _has_distinct_ports(self) -> Self:
        conflict = find_conflict(self.named_ports)
        if conflict is not None:
            raise ValueError(conflict)
        return self

    @model_validator(mode="after")
    def _is_deterministic_in_all(self) -> Self:
        if not self.model.deterministic:
            return self
        cache, parallel = self.cache, self.parallel
        lossy = {
            "codec": cache.codec is not Codec.NONE,
            "kv_dtype": cache.kv_dtype is not KvDtype.AUTO,
        }
        for name, is_lossy in lossy.items():
            if is_lossy:
                raise ValueError(
                    f"model.deterministic is on, and cache.{name} {getattr(cache, name)}, which "
                    f"rounds what a hit finds. Set cache.{name} to its default."
                )
        if self.model.quantization is QuantizationWay.NATIVE:
            raise ValueError(
                "model.deterministic is on, and model.quantization native, whose products have no "
                "fixed order. Set model.quantization to auto or restore."
            )
        if parallel.ep > 1 or parallel.tp > MAX_DETERMINISTIC_TP:
            raise ValueError(
                f"model.deterministic is on, parallel.tp {parallel.tp} and parallel.ep "
                f"{parallel.ep}; expected at most {MAX_DETERMINISTIC_TP} and 1: more ranks add up "
                "in an order that depends on the size of the step."
            )
        return self

    @model_validator(mode="after")
    def _fits_its_device(self) -> Self:
        l1, l2 = self.cache.l1, self.cache.l2
        if self.model.device == "cpu":
            if l1.memory_fraction is not None:
                raise ValueError(
                    "cache.l1.memory_fraction is for cuda; on cpu set cache.l1.num_pages."
                )
            if self.experts.dispatch_needs_gpus:
                raise ValueError(
                    f"experts.dispatch is {self.experts.dispatch}, which needs GPUs, and "
                    "model.device is cpu. Set experts.dispatch to auto, or model.device to cuda."
                )
            return self

        if l1.copy_delay_s:
            raise ValueError(
                "cache.l1.copy_delay_s is for cpu, where it stands for a device's delays. "
                "Remove it."
            )
        if l2 is not None and l2.bytes_per_node is None:
            raise ValueError(
                "cache.l2.bytes_per_node must be given on cuda (a ratio serves on cpu). "
                "Half of the memory that is left here would be "
                f"{available_memory_bytes() // 2**31}GiB; set cache.l2 to null to do without L2."
            )
        return self


def _too_long(asked: int, num_pages: int, page_size: int) -> str:
    return (
        f"model.max_model_len is {asked}, but cache.l1 holds {num_pages} pages of {page_size} = "
        f"{num_pages * page_size} tokens per rank. Lower it, or raise cache.l1.num_pages to "
        f"{-(-asked // page_size)}."
    )
