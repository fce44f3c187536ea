"""The steps of a GPU's rank: what each computed, and what it took the host and the device."""

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from benchmarks.device.passes import CudaStamp, HostStamp, Pass, idle_fraction
from benchmarks.model.model_shapes import ModelConfig
from benchmarks.records.record import Figure
from raydix.runtime.actors.gpu_model import GpuModel, LoadedGpuModel, RankPlace
from raydix.runtime.actors.torch_builder import build_torch_model
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.messages.plan import StepPlan
from raydix.runtime.tiers.transfers import WaitLayer

_PEAK_FLOPS = 790e12
"""The peak of an H200 in bfloat16, by large matrix products of cuBLAS."""
_PEAK_BYTES = 4.3e12
"""Read from its memory per second."""
_EXTENSION_TOKENS = 128


class StepKind(StrEnum):
    """What a step's rows are."""

    DECODE = "decode"
    EXTENSION = "extension"
    """The step extends one row by a few tokens."""
    MIXED = "mixed"
    """Prompts beside decodes."""
    PROMPTS = "prompts"


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a step."""

    num_tokens: int
    context_tokens: int
    """The tokens of the context, those of the row included."""
    samples: bool


@dataclass(slots=True, kw_only=True)
class Step:
    """One step with rows."""

    rows: tuple[Row, ...]
    host_ms: float = 0.0
    """The time to enqueue the step."""
    timing: Pass

    @property
    def num_tokens(self) -> int:
        """The tokens of all rows."""
        return sum(row.num_tokens for row in self.rows)

    @property
    def kind(self) -> StepKind:
        """What its rows are."""
        num_prompts = sum(row.num_tokens > 1 for row in self.rows)
        if not num_prompts:
            return StepKind.DECODE
        if num_prompts < len(self.rows):
            return StepKind.MIXED
        is_short = len(self.rows) == 1 and self.num_tokens <= _EXTENSION_TOKENS
        return StepKind.EXTENSION if is_short else StepKind.PROMPTS

    @property
    def device_ms(self) -> float:
        """The time from its first operation to its last, waits for loads included."""
        return self.timing.began.ms_until(self.timing.ended)


def step_floor_s(step: Step, model: ModelConfig) -> float:
    """What a device of an H200's peak rates takes: for arithmetic or for bytes, whichever is more.

    For models of dense layers with grouped-query attention, in bfloat16.
    """
    hidden, head_dim = int(model["hidden_size"]), int(model["head_dim"])
    heads, kv_heads = int(model["num_attention_heads"]), int(model["num_key_value_heads"])
    layers = int(model["num_hidden_layers"])
    attention = hidden * head_dim * (2 * heads + 2 * kv_heads)
    of_layers = layers * (attention + 3 * hidden * int(model["intermediate_size"]))
    head = hidden * int(model["vocab_size"])

    num_sampled = sum(row.samples for row in step.rows)
    pairs = sum(row.num_tokens * row.context_tokens - row.num_tokens**2 // 2 for row in step.rows)
    flops = 2 * of_layers * step.num_tokens + 2 * head * num_sampled
    flops += 4 * layers * heads * head_dim * pairs
    cached = sum(row.context_tokens for row in step.rows)
    num_bytes = 2 * (of_layers + head * bool(num_sampled))
    num_bytes += 2 * 2 * layers * kv_heads * head_dim * cached
    return max(flops / _PEAK_FLOPS, num_bytes / _PEAK_BYTES)


class _Runner:
    """A runner whose steps are logged."""

    def __init__(self, runner: Any, log: "StepLog") -> None:
        self._runner = runner
        self._log = log

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def execute(self, plan: StepPlan, wait_layer: WaitLayer) -> Any:
        began_s = time.perf_counter()
        output = self._runner.execute(plan, wait_layer)
        self._log.add(plan, 1e3 * (time.perf_counter() - began_s))
        return output


@dataclass
class StepLog:
    """Builds the configured model with steps that are kept. Owns: `steps`, in order."""

    steps: list[Step] = field(default_factory=list)
    _timing: Pass | None = None

    def clear(self) -> None:
        """Forget all steps."""
        self.steps.clear()

    def add(self, plan: StepPlan, host_ms: float) -> None:
        """A step has been enqueued."""
        rows = tuple(
            Row(int(num_tokens), int(start + num_tokens), bool(position >= 0))
            for num_tokens, start, position in zip(
                plan.row_num_tokens, plan.row_starts, plan.row_output_positions, strict=True
            )
        )
        if rows:
            assert self._timing is not None, "a step has been timed"
            self.steps.append(Step(rows=rows, host_ms=host_ms, timing=self._timing))

    def build_model(self, config: EngineConfig, place: RankPlace) -> LoadedGpuModel:
        """Build the model with a timer that logs its steps."""
        stamp = CudaStamp if config.model.device == "cuda" else HostStamp

        def make_timer() -> Pass:
            self._timing = Pass(stamp(), stamp())
            return self._timing

        loaded = build_torch_model(config, place)

        def prepare(num_pages: tuple[int, ...]) -> GpuModel:
            model = loaded.prepare(num_pages)
            return replace(model, make_timer=make_timer, runner=_Runner(model.runner, self))

        return replace(loaded, prepare=prepare)

    def figures(self) -> list[Figure]:
        """Steps by kind and size, and the part of the time in which the device does nothing."""
        figures = [
            Figure(name="idle", value=idle_fraction([step.timing for step in self.steps]), unit="1")
        ]
        for name, steps in self._by_kind().items():
            figures += [
                Figure(name=f"{name}: steps", value=len(steps), unit="1"),
                Figure(name=f"{name}: tokens", value=_mean(s.num_tokens for s in steps), unit="1"),
                Figure(name=f"{name}: host", value=_mean(s.host_ms for s in steps), unit="ms"),
                Figure(name=f"{name}: device", value=_mean(s.device_ms for s in steps), unit="ms"),
            ]
        return figures

    def _by_kind(self) -> dict[str, Sequence[Step]]:
        kinds: dict[str, list[Step]] = defaultdict(list)
        for step in self.steps:
            size = "" if step.kind is StepKind.DECODE else f" up to {_size(step.num_tokens)}"
            kinds[f"{step.kind}{size}"].append(step)
        return dict(sorted(kinds.items()))


def _size(num_tokens: int) -> int:
    return next(size for size in (128, 512, 1024, 2048, 4096, 1 << 30) if num_tokens <= size)


def _mean(values: Any) -> float:
    listed = list(values)
    return sum(listed) / len(listed)
