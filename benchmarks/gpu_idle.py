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
from collections.abc import Sequence
from dataclasses import replace

from benchmarks.device.passes import CudaStamp, HostStamp, Pass, idle_fraction, late_fraction
from benchmarks.engine.engines import (
    MOE_L12,
    MOE_TINY,
    Options,
    Prompts,
    ask_batch,
    dummy_engine,
    parse_options,
)
from benchmarks.engine.workloads import FULL_BATCHES, MAX_IDLE_FRACTION, TINY_BATCHES, Batches
from benchmarks.model.model_shapes import ModelConfig
from benchmarks.records.command_line import run
from benchmarks.records.record import Figure
from raydix.runtime.actors.gpu_model import GpuModel, LoadedGpuModel, RankPlace
from raydix.runtime.actors.torch_builder import build_torch_model
from raydix.runtime.config.engine import EngineConfig

RAMP_STEPS = 12
"""The steps that are not measured at either end of a batch, where prompts are computed and requests
end.
"""


class PassRecorder:
    """Builds the configured model with timers that are kept. Owns: `passes`, in order."""

    def __init__(self) -> None:
        self.passes: list[Pass] = []

    def build_model(self, config: EngineConfig, place: RankPlace) -> LoadedGpuModel:
        """Build the model with a timer that records its passes."""
        stamp = CudaStamp if config.model.device == "cuda" else HostStamp

        def make_timer() -> Pass:
            previous = self.passes[-1].ended if self.passes else None
            self.passes.append(Pass(stamp(), stamp(), previous))
            return self.passes[-1]

        loaded = build_torch_model(config, place)

        def prepare(num_pages: tuple[int, ...]) -> GpuModel:
            return replace(loaded.prepare(num_pages), make_timer=make_timer)

        return replace(loaded, prepare=prepare)


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
