"""How much is computed of answers that have ended, as the Scheduler finds their last tokens?

    python -m benchmarks.late_stops                 # 16 streams, steps of 2.5 ms; 384, 7.5 ms
    python -m benchmarks.late_stops --requests 384 --step-ms 30

Prompts and the longest answers are those of `benchmarks.throughput`; most answers end before, by a
stop token. The engine is one process, whose model makes tokens up. Once each step ends before the
next one is enqueued, as on the CPU; once a modelled device has steps enqueued ahead. There a rank
could not know of a stop before the step has ended that samples it: told apart is what was enqueued
before that. The last figure is what a rank would take to look for stops itself.
"""

import asyncio
import sys
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.records.command_line import add_keep, count, make_parser, positive, run
from benchmarks.records.record import Figure, report
from benchmarks.slow_host import SWITCH_S, Device, DeviceTimer
from benchmarks.throughput import Load
from raydix.runtime.actors.gpu_model import GpuModel, LoadedGpuModel, RankPlace
from raydix.runtime.api.sampling_params import SamplingParams
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.config.loading import load_config
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.plan import StepPlan
from raydix.runtime.testing.engine import InProcessEngine, in_process_engine
from raydix.runtime.testing.sleeping_runner import SleepingOutput, build_sleeping_model
from raydix.runtime.tiers.transfers import WaitLayer

STOP, FIRST_TOKEN, NUM_TOKENS = 7, 8, 30_000
MEAN_TOKENS = 288
"""The mean length of answers that only a stop ends: the mean of those of the load."""
CASES: tuple[tuple[int, float], ...] = ((16, 2.5), (384, 7.5))
STOP_COLUMNS, NUM_LOOKS = 4, 2000


class StoppingRunner:
    """Makes tokens up, by slot and position alone, and counts those past a stop of their slot."""

    def __init__(self, device: Device, *, is_enqueued: bool) -> None:
        self._device = device
        self._is_enqueued = is_enqueued
        self._ends_s: dict[int, float] = {}
        """When the step has ended that sampled a stop, by slot."""
        self.num_late = 0
        self.num_unaware = 0
        """The part of them that was enqueued before the step with the stop had ended."""

    def apply(self, plan: StepPlan) -> None:
        """Forget what slots had that are given to others."""
        for slot in (*plan.removed_slots.tolist(), *(added.slot for added in plan.added)):
            self._ends_s.pop(slot, None)

    def execute(self, plan: StepPlan, wait_layer: WaitLayer) -> SleepingOutput:
        """Carry a step out, or enqueue it."""
        now_s = time.monotonic()
        self._device.enqueue(len(plan.row_slots))
        end_s = self._device.steps[-1].end_s
        if not self._is_enqueued:
            time.sleep(max(0.0, end_s - time.monotonic()))

        samples = plan.row_output_positions >= 0
        slots = plan.row_slots[samples].astype(np.int64)
        positions = plan.row_starts[samples] + plan.row_num_tokens[samples]
        drawn = slots * 2_654_435_761 + positions * 3_922_091 + slots * positions * 7919
        drawn %= 1_000_003
        token_ids = np.where(drawn % MEAN_TOKENS == 0, STOP, FIRST_TOKEN + drawn % NUM_TOKENS)
        for slot, token_id in zip(slots.tolist(), token_ids.tolist(), strict=True):
            if slot in self._ends_s:
                self.num_late += 1
                self.num_unaware += now_s < self._ends_s[slot]
            elif token_id == STOP:
                self._ends_s[slot] = end_s
        return SleepingOutput(int32_array(token_ids))


def build_model(
    config: EngineConfig,
    place: RankPlace,
    *,
    device: Device,
    runner: StoppingRunner,
    is_enqueued: bool,
) -> LoadedGpuModel:
    """A model of no weights, which makes tokens up."""
    loaded = build_sleeping_model(config, place, step_s=0.0)

    def prepare(num_pages: tuple[int, ...]) -> GpuModel:
        model = replace(loaded.prepare(num_pages), runner=runner)
        return replace(model, make_timer=lambda: DeviceTimer(device)) if is_enqueued else model

    return replace(loaded, prepare=prepare)


async def ask(engine: InProcessEngine, load: Load, num_requests: int) -> list[tuple[int, bool]]:
    """All requests at once: how many tokens each has brought, and whether a stop ended it."""
    draw = np.random.default_rng(num_requests)
    lengths = draw.integers(*load.prompt_tokens, num_requests, endpoint=True).tolist()
    wants = SamplingParams(
        temperature=0.0, max_tokens=load.output_tokens[1], stop_token_ids=[STOP], ignore_eos=True
    )

    async def stream(length: int) -> tuple[int, bool]:
        prompt = draw.integers(FIRST_TOKEN, NUM_TOKENS, length).tolist()
        async for output in engine.client.generate(prompt, wants):
            [answer] = output.outputs
        return len(answer.token_ids), answer.finish_reason == "stop"

    return await asyncio.gather(*(stream(length) for length in lengths))


@dataclass(frozen=True, kw_only=True)
class Counted:
    """What became of one load."""

    num_tokens: int
    num_stops: int
    num_late: int
    num_unaware: int


async def measure(load: Load, num_requests: int, step_s: float, *, is_enqueued: bool) -> Counted:
    """Count what is computed past stops."""
    pages_each = -(-(load.prompt_tokens[1] + load.output_tokens[1]) // load.page_size) + 1
    config = load_config(
        {
            "model": {"path": "none"},
            "cache": {
                "page_size": load.page_size,
                "l1": {"num_pages": num_requests * pages_each},
                "l2": None,
            },
            "scheduler": {"max_running_requests": num_requests},
        }
    )
    device = Device(step_s)
    runner = StoppingRunner(device, is_enqueued=is_enqueued)
    build = partial(build_model, device=device, runner=runner, is_enqueued=is_enqueued)
    async with in_process_engine(config, build) as engine:
        answers = await ask(engine, load, num_requests)
    return Counted(
        num_tokens=sum(num_tokens for num_tokens, _ in answers),
        num_stops=sum(is_stop for _, is_stop in answers),
        num_late=runner.num_late,
        num_unaware=runner.num_unaware,
    )


def figures_of(what: str, counted: Counted) -> list[Figure]:
    """Figures of one load, in which some answers have ended by a stop."""
    late, unaware, num_stops = counted.num_late, counted.num_unaware, counted.num_stops
    past = f"{what}: computed past"
    return [
        Figure(name=f"{past} a stop", value=late / num_stops, unit="tokens"),
        Figure(
            name=f"{past} a stop that no rank could know", value=unaware / num_stops, unit="tokens"
        ),
        Figure(name=f"{past} stops, of all tokens", value=late / counted.num_tokens, unit="1"),
    ]


def look_us(num_rows: int) -> float:
    """The time of one look for stops among so many rows, as the Scheduler looks for them."""
    stop_ids = np.full((num_rows, STOP_COLUMNS), STOP, dtype=np.int32)
    slots = np.arange(num_rows, dtype=np.int32)
    token_ids, known = slots + FIRST_TOKEN, np.full(num_rows, 5, dtype=np.int32)
    began_s = time.perf_counter()
    for _ in range(NUM_LOOKS):
        is_stop = (stop_ids[slots] == token_ids[:, None]).any(axis=1)
        is_stop &= known[slots] >= 1
    return (time.perf_counter() - began_s) / NUM_LOOKS * 1e6


def main(cases: tuple[tuple[int, float], ...], load: Load, keep_in: Path | None) -> int:
    """Measure and report."""
    sys.setswitchinterval(SWITCH_S)
    figures = []
    for num_requests, step_ms in cases:
        for is_enqueued, way in ((False, "as on the CPU"), (True, "enqueued ahead")):
            counted = asyncio.run(
                measure(load, num_requests, step_ms / 1e3, is_enqueued=is_enqueued)
            )
            figures += figures_of(f"{num_requests} requests, {step_ms} ms, {way}", counted)
        name = f"a look for stops among {num_requests} rows"
        figures.append(Figure(name=name, value=look_us(num_requests), unit="us"))
    config = {"cases": cases, "mean_tokens": MEAN_TOKENS}
    return report("late_stops", config, figures, keep_in=keep_in)


def command() -> int:
    """Read the command line and measure."""
    parser = make_parser(__doc__)
    parser.add_argument("--requests", type=count, help="in place of both loads")
    parser.add_argument("--step-ms", type=positive, default=7.5)
    add_keep(parser)
    arguments = parser.parse_args()
    cases = CASES
    if arguments.requests is not None:
        cases = ((arguments.requests, arguments.step_ms),)
    return main(cases, Load(), arguments.keep)


if __name__ == "__main__":
    run(command)
