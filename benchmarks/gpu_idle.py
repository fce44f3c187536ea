"""Measure the part of the time in which the GPU does nothing during steady decode.

    python -m benchmarks.gpu_idle

Each pass of the model lies between two events on the device. Idle is what is left between the
passes of 500 consecutive decode steps: wall time from the first event to the last, less the passes.
No profiler is attached.

A pass that is enqueued while the one before it still runs leaves no gap. Where the device had run
dry, it may also have waited within the pass; the upper bound counts all of the host's work on such
a pass as idle.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import torch

from benchmarks.command_line import run
from benchmarks.engines import (
    MOE_L12,
    MOE_TINY,
    Options,
    Prompts,
    ask_batch,
    dummy_engine,
    parse_options,
)
from benchmarks.model_shapes import ModelConfig
from benchmarks.record import Figure
from benchmarks.workloads import FULL_BATCHES, MAX_IDLE_FRACTION, TINY_BATCHES, Batches
from raydix.runtime.actors.gpu_model import GpuModel, LoadedGpuModel, RankPlace, build_torch_model
from raydix.runtime.config.engine import EngineConfig

RAMP_STEPS = 12
"""Not measured at either end of a batch, where prompts are computed and requests end."""


class Stamp(Protocol):
    """A moment on the clock of a device."""

    def take(self) -> None:
        """The moment is when the device gets here."""

    def wait(self) -> None:
        """Until the moment has come."""

    def has_come(self) -> bool:
        """Whether the device got here."""

    def ms_until(self, later: "Stamp") -> float:
        """Milliseconds from this moment to another one of the same kind; both have come."""


class CudaStamp:
    """A `Stamp` on the current stream."""

    def __init__(self) -> None:
        self._event = torch.cuda.Event(enable_timing=True)

    def take(self) -> None:
        """See `Stamp`."""
        self._event.record()

    def wait(self) -> None:
        """See `Stamp`."""
        self._event.synchronize()

    def has_come(self) -> bool:
        """See `Stamp`."""
        return self._event.query()

    def ms_until(self, later: Stamp) -> float:
        """See `Stamp`."""
        assert isinstance(later, CudaStamp)
        return self._event.elapsed_time(later._event)


class HostStamp:
    """A `Stamp` for work that the calling thread does itself."""

    def __init__(self, time_s: float = 0.0) -> None:
        self._time_s = time_s

    def take(self) -> None:
        """See `Stamp`."""
        self._time_s = time.monotonic()

    def wait(self) -> None:
        """See `Stamp`."""

    def has_come(self) -> bool:
        """See `Stamp`."""
        return True

    def ms_until(self, later: Stamp) -> float:
        """See `Stamp`."""
        assert isinstance(later, HostStamp)
        return 1e3 * (later._time_s - self._time_s)


class Pass:
    """A `StepTimer` whose moments stay. `previous`: the end of the pass before it."""

    def __init__(self, began: Stamp, ended: Stamp, previous: Stamp | None = None) -> None:
        self.began = began
        self.ended = ended
        self.late_ms = 0.0
        """The host's time to enqueue it, if the device had nothing else to do by then."""
        self._previous = previous
        self._host_began_s = 0.0

    def begin(self) -> None:
        """See `StepTimer`."""
        self._host_began_s = time.monotonic()
        self.began.take()

    def pause(self) -> None:
        """Waits count: nothing is loaded here."""

    def resume(self) -> None:
        """See `pause`."""

    def end(self) -> None:
        """See `StepTimer`."""
        self.ended.take()
        if self._previous is not None and self._previous.has_come():
            self.late_ms = 1e3 * (time.monotonic() - self._host_began_s)

    def wait_s(self) -> float:
        """See `StepTimer`."""
        self.ended.wait()
        return self.began.ms_until(self.ended) / 1e3


class PassRecorder:
    """Builds the configured model with timers that are kept. Owns: `passes`, in order."""

    def __init__(self) -> None:
        self.passes: list[Pass] = []

    def build_model(self, config: EngineConfig, place: RankPlace) -> LoadedGpuModel:
        """See `BuildModel`."""
        stamp = CudaStamp if config.model.device == "cuda" else HostStamp

        def make_timer() -> Pass:
            previous = self.passes[-1].ended if self.passes else None
            self.passes.append(Pass(stamp(), stamp(), previous))
            return self.passes[-1]

        loaded = build_torch_model(config, place)

        def prepare(num_pages: tuple[int, ...]) -> GpuModel:
            return replace(loaded.prepare(num_pages), make_timer=make_timer)

        return replace(loaded, prepare=prepare)


def idle_fraction(passes: Sequence[Pass]) -> float:
    """The part of the time from the first pass to the last that is in none of them."""
    wall_ms = passes[0].began.ms_until(passes[-1].ended)
    return 1 - sum(each.began.ms_until(each.ended) for each in passes) / wall_ms


def late_fraction(passes: Sequence[Pass]) -> float:
    """What may be idle within the passes, as a part of the same time."""
    return sum(each.late_ms for each in passes) / passes[0].began.ms_until(passes[-1].ended)


async def measure(
    options: Options, sizes: Batches, model: ModelConfig, batches: Sequence[int], num_steps: int
) -> list[Figure]:
    """One run of `num_steps` per batch size, after one that warms up."""
    output_tokens = num_steps + 2 * RAMP_STEPS
    prompts = Prompts(int(model["vocab_size"]))
    recorder = PassRecorder()
    figures = []

    async with dummy_engine(
        options, model, sizes.sections(output_tokens), recorder.build_model
    ) as engine:
        for batch in batches:
            for num_tokens in (2 * RAMP_STEPS, output_tokens):
                recorder.passes.clear()
                drawn = [prompts.draw(sizes.prompt_tokens) for _ in range(batch)]
                await ask_batch(engine.client.generate, drawn, num_tokens)
                await engine.settle()

            steady = recorder.passes[RAMP_STEPS : RAMP_STEPS + num_steps]
            assert len(steady) == num_steps, "every output token takes a step"
            step_ms = steady[0].began.ms_until(steady[-1].ended) / num_steps
            figures += [
                Figure(
                    name=f"idle, batch {batch}",
                    value=idle_fraction(steady),
                    unit="1",
                    max_value=options.bar(MAX_IDLE_FRACTION),
                ),
                Figure(
                    name=f"idle, batch {batch}, upper bound",
                    value=idle_fraction(steady) + late_fraction(steady),
                    unit="1",
                ),
                Figure(name=f"wall time per step, batch {batch}", value=step_ms, unit="ms"),
            ]
    return figures


def main(options: Options) -> int:
    """Measure and report."""
    if options.is_tiny:
        sizes, model, batches, num_steps = TINY_BATCHES, MOE_TINY, (1, 4), 40
    else:
        sizes, model, batches, num_steps = FULL_BATCHES, MOE_L12, (1, 64), 500
    figures = asyncio.run(measure(options, sizes, model, batches, num_steps))
    config = {"model": "moe_l12", "prompt_tokens": sizes.prompt_tokens, "steps": num_steps}
    return options.report("gpu_idle", config, figures)


if __name__ == "__main__":
    run(lambda: main(parse_options(__doc__)))
