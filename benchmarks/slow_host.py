"""Does a device wait for a slow host? Steps of a modelled device, beside threads that only spin.

    python -m benchmarks.slow_host                    # 16 streams, steps of 2.5 ms
    python -m benchmarks.slow_host --step-ms 4 --spinning 4

The engine is one process, whose threads share one interpreter: Scheduler, GPU actor, client, and
the threads that spin, which slow all others down so many times. The device is modelled: a step
begins when it is enqueued or when the one before it ends, whichever is later, and takes the same
time. So what a token takes beyond that, the device has waited for the host.
"""

import asyncio
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

from benchmarks.records.command_line import add_keep, count, make_parser, positive, run
from benchmarks.records.record import Figure, report
from raydix.runtime.actors.gpu_model import GpuModel, LoadedGpuModel, RankPlace
from raydix.runtime.api.sampling_params import SamplingParams
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.config.loading import load_config
from raydix.runtime.messages.plan import StepPlan
from raydix.runtime.testing.engine import InProcessEngine, in_process_engine
from raydix.runtime.testing.sleeping_runner import (
    SleepingOutput,
    SleepingRunner,
    build_sleeping_model,
)
from raydix.runtime.tiers.transfers import WaitLayer

PROMPT_TOKENS = 64
RAMP_STEPS = 20
"""Steps at either end of a round that do not count."""
SWITCH_S = 5e-5
"""Threads take turns at the interpreter after so long."""
MAX_SLOWDOWN = 1.1


@dataclass(frozen=True, slots=True)
class _Step:
    """A step of the modelled device."""

    num_rows: int
    enqueued_s: float
    end_s: float


class Device:
    """Owns: when the steps of a modelled device end."""

    def __init__(self, step_s: float) -> None:
        self._step_s = step_s
        self.steps: list[_Step] = []

    def enqueue(self, num_rows: int) -> None:
        """One more step, behind those before it."""
        now_s = time.monotonic()
        free_s = self.steps[-1].end_s if self.steps else 0.0
        end_s = max(now_s, free_s) + self._step_s
        self.steps.append(_Step(num_rows, now_s, end_s))

    def idle_fraction(self, num_rows: int) -> float:
        """How much longer a step of so many rows takes for what the device waits before it."""
        steps = [step for step in self.steps if step.num_rows == num_rows]
        steps = steps[RAMP_STEPS:-RAMP_STEPS]
        taken_s = steps[-1].end_s - steps[0].end_s
        return taken_s / (len(steps) - 1) / self._step_s - 1.0


class DeviceRunner:
    """Carries plans out on a modelled device."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._tokens = SleepingRunner(0.0)

    def apply(self, plan: StepPlan) -> None:
        """Keeps no state."""

    def execute(self, plan: StepPlan, wait_layer: WaitLayer) -> SleepingOutput:
        """Enqueue a step."""
        output = self._tokens.execute(plan, wait_layer)
        self._device.enqueue(len(plan.row_slots))
        return output


class DeviceTimer:
    """Waits for the step that was enqueued last."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._end_s = 0.0

    def begin(self) -> None:
        """Nothing is timed on the host."""

    def pause(self) -> None:
        """No row waits for a load."""

    def resume(self) -> None:
        """No row waits for a load."""

    def end(self) -> None:
        """Note which step it is."""
        self._end_s = self._device.steps[-1].end_s

    def wait_s(self) -> float:
        """Wait for the step; returns the time that it took."""
        left_s = self._end_s - time.monotonic()
        if left_s > 0.0:
            time.sleep(left_s)
        return self._device._step_s


def build_model(config: EngineConfig, place: RankPlace, *, device: Device) -> LoadedGpuModel:
    """A model of no weights on this device."""
    loaded = build_sleeping_model(config, place, step_s=0.0)

    def prepare(num_pages: tuple[int, ...]) -> GpuModel:
        model = loaded.prepare(num_pages)
        return replace(model, runner=DeviceRunner(device), make_timer=lambda: DeviceTimer(device))

    return replace(loaded, prepare=prepare)


@contextmanager
def spinning(num_threads: int) -> Iterator[None]:
    """Let threads spin meanwhile, which take their turns at the interpreter."""
    stop = threading.Event()

    def spin() -> None:
        while not stop.is_set():
            for _ in range(1000):
                pass

    threads = [threading.Thread(target=spin, daemon=True) for _ in range(num_threads)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


async def ask(engine: InProcessEngine, num_streams: int, num_tokens: int) -> None:
    """Stream so many requests at once to their end."""
    greedy = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)

    async def stream(number: int) -> None:
        prompt = [1 + number, *range(2, PROMPT_TOKENS + 1)]
        async for _ in engine.client.generate(prompt, greedy):
            pass

    await asyncio.gather(*(stream(number) for number in range(num_streams)))


async def measure(num_streams: int, num_tokens: int, step_s: float, num_spinning: int) -> float:
    """The part by which steps of all streams together are longer than the device needs."""
    config = load_config(
        {
            "model": {"path": "none"},
            "cache": {"page_size": 64, "l1": {"num_pages": 4096}, "l2": None},
            "scheduler": {"max_running_requests": num_streams},
        }
    )
    device = Device(step_s)
    async with in_process_engine(config, partial(build_model, device=device)) as engine:
        await ask(engine, num_streams, RAMP_STEPS)
        device.steps.clear()
        with spinning(num_spinning):
            await ask(engine, num_streams, num_tokens)
    return device.idle_fraction(num_streams)


def main() -> int:
    """Measure without and with the threads that spin, and return 1 below the bar."""
    parser = make_parser(__doc__)
    parser.add_argument("--streams", type=count, default=16)
    parser.add_argument("--tokens", type=count, default=600)
    parser.add_argument("--step-ms", type=positive, default=2.5)
    parser.add_argument("--spinning", type=count, default=2)
    add_keep(parser)
    arguments = parser.parse_args()
    sys.setswitchinterval(SWITCH_S)

    figures = []
    for num_spinning in (0, arguments.spinning):
        idle = asyncio.run(
            measure(arguments.streams, arguments.tokens, arguments.step_ms / 1e3, num_spinning)
        )
        figures.append(
            Figure(
                name=f"TPOT beside {num_spinning} spinning threads, over the step's time",
                value=1.0 + idle,
                unit="",
                max_value=MAX_SLOWDOWN,
            )
        )
    config = {
        "streams": arguments.streams,
        "tokens": arguments.tokens,
        "step_ms": arguments.step_ms,
        "spinning": arguments.spinning,
    }
    return report("slow_host", config, figures, keep_in=arguments.keep)


if __name__ == "__main__":
    run(main)
