"""The configuration: one tree of frozen models, checked whole when it is loaded and never changed
afterwards.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import Field, ValidationError, field_validator, model_validator

from raydix.errors import ConfigError
from raydix.kernels.page_codec import Codec
from raydix.runtime.config.errors import describe
from raydix.runtime.config.l3 import Hf3fsL3Section, L3Section
from raydix.runtime.config.memory_limit import available_memory_bytes
from raydix.runtime.config.values import Count, Seconds, Section, Size


class ModelSection(Section):
    """Which model, and how it is held."""

    path: str = Field(
        description="Folder of a Hugging Face checkpoint (config.json and safetensors)."
    )
    load_format: Literal["auto", "dummy"] = Field(
        "auto",
        description="dummy: random weights for a folder that holds config.json alone, to measure speed.",
    )
    device: Literal["cpu", "cuda"] = Field("cpu", description="Where the model runs.")
    dtype: Literal["float32", "bfloat16", "float16"] = Field(
        "float32",
        description="Type of weights, activations and cached KV. Default on cuda: bfloat16.",
    )
    max_model_len: Count | None = Field(
        None,
        description="Most tokens of prompt and output. null: as many as the model and the cache allow.",
    )


class ParallelSection(Section):
    """How many copies of the model serve, and over how many devices each is spread."""

    dp: Count = Field(
        1, description="Data-parallel ranks: whole copies of the model, each with its own L1."
    )
    tp: Count = Field(1, description="Tensor-parallel ranks per copy. Only 1 is supported.")

    @field_validator("tp")
    @classmethod
    def _only_one(cls, tp: int) -> int:
        if tp != 1:
            raise ValueError(
                f"parallel.tp is {tp}; tensor parallelism is not supported. Set parallel.tp to 1."
            )
        return tp


class L1Section(Section):
    """Pages in the memory of each rank's device."""

    num_pages: Count | None = Field(
        None, description="Usable pages per rank. Default on cpu: 1024."
    )
    memory_fraction: Annotated[float, Field(gt=0.0, lt=1.0)] | None = Field(
        None,
        description="cuda only: part of the device's memory for weights and pages. Default on cuda: 0.85.",
    )
    copy_delay_s: Seconds = Field(
        0.0,
        description="cpu only: each page copy takes a random time of up to this long, to show every order.",
    )

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if (self.num_pages is None) == (self.memory_fraction is None):
            raise ValueError(
                "cache.l1 needs exactly one of num_pages and memory_fraction. Set the other to "
                "null."
            )
        return self


class L2Section(Section):
    """The arena in each node's memory."""

    bytes_per_node: Size | None = Field(
        None, description="Size of the arena. Must be given on cuda."
    )
    ratio: Annotated[float, Field(gt=0.0)] | None = Field(
        None,
        description="cpu only: size of the arena as a multiple of the node's L1. Default on cpu: 4.0.",
    )

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if (self.bytes_per_node is None) == (self.ratio is None):
            raise ValueError(
                "cache.l2 needs exactly one of bytes_per_node and ratio. Set the other to null."
            )
        return self


class PrefetchSection(Section):
    """How long a request waits for pages on their way from L3."""

    strategy: Literal["best_effort", "wait_complete", "timeout"] = Field(
        "timeout",
        description="best_effort: no wait; wait_complete: for all pages; timeout: for a bounded time.",
    )
    base_s: Seconds = Field(1.0, description="timeout: the fixed part of the bound.")
    per_1k_tokens_s: Seconds = Field(
        0.25, description="timeout: the part per 1024 tokens of the prompt."
    )
    min_tokens: Annotated[int, Field(ge=0)] = Field(
        64, description="Fewer missing tokens than this are not fetched."
    )
    cap: Literal["recompute", "none"] = Field(
        "recompute",
        description="recompute: never wait longer than computing the tokens would take. none: no such cap.",
    )


class CacheSection(Section):
    """The three tiers and the rules between them."""

    page_size: int = Field(
        16, description="Tokens per page, a power of two up to 256. Default on cuda: 64."
    )
    l1: L1Section = Field(
        default_factory=lambda: L1Section(num_pages=1024), description="Pages on the device."
    )
    l2: L2Section | None = Field(
        default_factory=lambda: L2Section(ratio=4.0),
        description="The node's arena. null: no L2, hence no L3.",
    )
    l3: L3Section | None = Field(None, description="Storage that outlives the engine. null: none.")
    codec: Annotated[Codec, Field(strict=False)] = Field(
        Codec.NONE,
        description="How pages are held in L2 and L3; int8 and fp8 halve bf16 pages and round them.",
    )
    prefix_caching: bool = Field(
        True, description="false: nothing is matched, kept, loaded or stored."
    )
    eviction: Literal["lru", "lfu", "fifo", "mru", "filo", "slru", "priority"] = Field(
        "lru", description="Which cached prefixes leave L1 first."
    )
    load: Literal["auto", "always", "never"] = Field(
        "always",
        description="Load pages found in L2; auto: only if faster than computing them. Default on cuda: auto.",
    )
    write_policy: Literal["write_through", "write_through_selective", "write_back"] = Field(
        "write_through",
        description="When a page is copied to L2: once computed, once reused, or before eviction.",
    )
    write_threshold: Count = Field(
        2, description="write_through_selective: copied from this many requests on."
    )
    prefetch: PrefetchSection = Field(default_factory=PrefetchSection, description="Reads from L3.")

    @field_validator("page_size")
    @classmethod
    def _power_of_two(cls, page_size: int) -> int:
        if not 1 <= page_size <= 256 or page_size & (page_size - 1):
            raise ValueError(
                f"cache.page_size is {page_size}; expected a power of two in 1..256. Set "
                f"cache.page_size to 16 or 64."
            )
        return page_size

    @model_validator(mode="after")
    def _settings_have_an_effect(self) -> Self:
        if self.l3 is not None and self.l2 is None:
            raise ValueError(
                "cache.l3 needs cache.l2, through which its pages pass. Set cache.l2, or cache.l3 "
                "to null."
            )
        if self.codec is not Codec.NONE and (self.l2 is None or not self.prefix_caching):
            missing = "cache.l2" if self.l2 is None else "cache.prefix_caching"
            raise ValueError(
                f"cache.codec {self.codec} has no effect without {missing}: it encodes pages of "
                f"L2 and L3. "
                f"Set {missing}, or cache.codec to none."
            )
        if (
            "write_threshold" in self.model_fields_set
            and self.write_policy != "write_through_selective"
        ):
            raise ValueError(
                f"cache.write_threshold has no effect with cache.write_policy {self.write_policy}. "
                "Remove it, or set cache.write_policy to write_through_selective."
            )
        return self


class SchedulerSection(Section):
    """Order and size of batches. Budgets are per data-parallel rank."""

    policy: Literal["fcfs", "lpm"] = Field(
        "lpm", description="fcfs: by arrival; lpm: longest cached prefix first."
    )
    max_prefill_tokens: Count = Field(
        16384,
        description="Prompt tokens per step when chunking is off; the first prompt is always admitted.",
    )
    chunked_prefill_tokens: Count | None = Field(
        2048, description="Prompt tokens per step, a multiple of the page size. null: no chunking."
    )
    max_running_requests: Count = Field(
        64, description="Requests that a rank generates for at once."
    )
    max_waiting_requests: Count = Field(
        1024, description="Waiting requests beyond which new ones are refused."
    )


class EngineConfig(Section):
    """The whole configuration of one engine."""

    model: ModelSection
    parallel: ParallelSection = Field(default_factory=ParallelSection)
    cache: CacheSection = Field(default_factory=CacheSection)
    scheduler: SchedulerSection = Field(default_factory=SchedulerSection)

    @property
    def has_l2(self) -> bool:
        """Whether pages are kept in the host arena."""
        return self.cache.prefix_caching and self.cache.l2 is not None

    @property
    def has_l3(self) -> bool:
        """Whether pages are kept in storage."""
        return self.has_l2 and self.cache.l3 is not None

    @property
    def arena_folder(self) -> str | None:
        """Where the arena's file must be able to have a name: 3FS maps shared memory by name only.
        None: nowhere.
        """
        return "/dev/shm" if isinstance(self.cache.l3, Hf3fsL3Section) else None

    def with_num_pages(self, num_pages: int) -> "EngineConfig":
        """The configuration of a rank that is to have exactly so many L1 pages, whatever memory it
        finds.
        """
        l1 = self.cache.l1.model_copy(update={"num_pages": num_pages, "memory_fraction": None})
        return self.model_copy(update={"cache": self.cache.model_copy(update={"l1": l1})})

    def max_model_len(self, max_position_embeddings: int, num_pages: int) -> int:
        """Tokens of prompt and output that a request may have, with `num_pages` usable pages per
        rank.

        Raises ConfigError if `model.max_model_len` asks for more than the model or the pages can
        hold.
        """
        capacity = num_pages * self.cache.page_size
        asked = self.model.max_model_len
        if asked is None:
            return min(max_position_embeddings, capacity)
        if asked > max_position_embeddings:
            raise ConfigError(
                f"model.max_model_len is {asked}; the model knows {max_position_embeddings} "
                f"positions. "
                f"Set model.max_model_len to at most {max_position_embeddings}."
            )
        if asked > capacity:
            raise ConfigError(_too_long(asked, num_pages, self.cache.page_size))
        return asked

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        cache, chunk = self.cache, self.scheduler.chunked_prefill_tokens
        if chunk is not None and chunk % cache.page_size:
            raise ValueError(
                f"scheduler.chunked_prefill_tokens is {chunk}; expected a multiple of "
                f"cache.page_size "
                f"({cache.page_size}) or null. Set it to "
                f"{-(-chunk // cache.page_size) * cache.page_size}."
            )
        asked, num_pages = self.model.max_model_len, cache.l1.num_pages
        if asked is not None and num_pages is not None and asked > num_pages * cache.page_size:
            raise ValueError(_too_long(asked, num_pages, cache.page_size))
        if self.model.device == "cpu" and cache.l1.memory_fraction is not None:
            raise ValueError("cache.l1.memory_fraction is for cuda; on cpu set cache.l1.num_pages.")
        if self.model.device == "cuda":
            self._check_cuda()
        return self

    def _check_cuda(self) -> None:
        if self.cache.l1.copy_delay_s:
            raise ValueError(
                "cache.l1.copy_delay_s is for cpu, where it stands for a device's delays. Remove "
                "it."
            )
        if self.cache.l2 is not None and self.cache.l2.bytes_per_node is None:
            raise ValueError(
                "cache.l2.bytes_per_node must be given on cuda (a ratio serves on cpu). "
                f"Half of the memory that is left here would be "
                f"{available_memory_bytes() // 2**31}GiB; "
                "set cache.l2 to null to do without L2."
            )


def _too_long(asked: int, num_pages: int, page_size: int) -> str:
    return (
        f"model.max_model_len is {asked}, but cache.l1 holds {num_pages} pages of {page_size} = "
        f"{num_pages * page_size} tokens per rank. Lower it, or raise cache.l1.num_pages to "
        f"{-(-asked // page_size)}."
    )


def load_config(
    source: str | Path | Mapping[str, Any] | EngineConfig | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> EngineConfig:
    """Read and check a configuration.

    source: a YAML file, a checkpoint folder (its path becomes `model.path`), a dict, or None if
    `overrides` say all. overrides: sections laid over the source, key by key.
    Raises ConfigError that names every wrong key with its value, and for an unknown key the nearest
    valid one.
    """
    values = _with_device_defaults(_merge(_read(source), overrides or {}))
    try:
        return EngineConfig.model_validate(values)
    except ValidationError as error:
        raise ConfigError(describe(error, EngineConfig)) from None


def replace_l3(config: EngineConfig, section: Mapping[str, Any] | None) -> EngineConfig:
    """The configuration with another section `cache.l3`, or none. Raises ConfigError as
    `load_config` does.
    """
    values = config.model_dump(exclude_unset=True)
    return load_config(values | {"cache": {**values.get("cache", {}), "l3": section}})


def apply_set(values: Mapping[str, Any], assignment: str) -> dict[str, Any]:
    """Lay `cache.l1.num_pages=64` over nested sections and return the result. The value is read as
    YAML.
    """
    key, equals, text = assignment.partition("=")
    if not equals or not all(key.split(".")):
        raise ConfigError(f"--set {assignment}: expected KEY=VALUE, such as cache.l1.num_pages=64.")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        raise ConfigError(f"--set {assignment}: {text!r} is not a YAML value.") from None
    for part in reversed(key.split(".")):
        value = {part: value}
    return _merge(values, value)


def _read(source: str | Path | Mapping[str, Any] | EngineConfig | None) -> dict[str, Any]:
    if source is None:
        return {}
    if isinstance(source, EngineConfig):
        return source.model_dump(exclude_unset=True)
    if isinstance(source, Mapping):
        return dict(source)
    path = Path(source)
    if path.is_dir():
        return {"model": {"path": str(path)}}
    if not path.is_file():
        raise ConfigError(
            f"{source} is neither a YAML file nor a checkpoint folder. Names on the Hugging Face "
            f"Hub are not "
            "supported: download the model and give its folder."
        )
    try:
        text = path.read_text()
        _require_unique_keys(yaml.compose(text, yaml.SafeLoader), path)
        values = yaml.safe_load(text)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise ConfigError(
            f"{path} holds {type(values).__name__}; expected sections such as model and cache."
        )
    return values


def _require_unique_keys(node: yaml.Node | None, path: Path) -> None:
    """YAML lets the last of equal keys win in silence."""
    if not isinstance(node, yaml.MappingNode):
        return
    seen: set[str] = set()
    for key, value in node.value:
        if key.value in seen:
            raise ConfigError(
                f"{path} has the key {key.value} twice, again in line {key.start_mark.line + 1}."
            )
        seen.add(key.value)
        _require_unique_keys(value, path)


def _merge(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    """Copy `lower` with `upper` laid over it; sections are merged key by key, anything else is
    replaced.
    """
    merged = dict(lower)
    for key, value in upper.items():
        below = merged.get(key)
        if isinstance(value, Mapping):
            merged[key] = _merge(below if isinstance(below, Mapping) else {}, value)
        else:
            merged[key] = value
    return merged


def _with_device_defaults(values: dict[str, Any]) -> dict[str, Any]:
    """Fill in what depends on the device, so that the checked configuration says everything."""
    model, cache = values.get("model"), values.get("cache", {})
    if not isinstance(model, Mapping) or not isinstance(cache, Mapping):
        return values
    l1 = cache.get("l1", {})
    has_l1_size = isinstance(l1, Mapping) and any(
        l1.get(key) is not None for key in ("num_pages", "memory_fraction")
    )
    if model.get("device", "cpu") == "cuda":
        defaults: dict[str, Any] = {
            "model": {"dtype": "bfloat16"},
            "cache": {"page_size": 64, "load": "auto"},
        }
        l1_default = {"memory_fraction": 0.85}
    else:
        defaults, l1_default = {"cache": {}}, {"num_pages": 1024}
    if not has_l1_size and isinstance(l1, Mapping):
        defaults["cache"]["l1"] = l1_default
    return _merge(defaults, values)
