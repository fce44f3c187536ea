"""What a decode step costs the threads of a GPU actor, in microseconds, by part. Needs no Ray.

    python -m benchmarks.host_share                          # dense_l16 on one GPU
    python -m benchmarks.host_share --device cpu             # a device that does nothing
    python -m benchmarks.host_share --device cpu --tiny

A GPU actor carries plans out that come as bytes over a link within this process, one ahead of the
results that it sends back as bytes: what is counted is the processor time of its launcher, which
enqueues steps, and of its completer, which reports them. On the CPU a step is enqueued by nothing
and takes no time, so what remains is Python. Requests are greedy, and every 64th token of each
brings an entry of its block table.

"Repeated" is the same with plans that stand for 15 further steps.

The parts are timed one by one beside that: the median of runs of 10. On a GPU the completer counts
by its parts alone, for the thread spins while it waits for the device.
"""

import os
import queue
import select
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from benchmarks.engine.engines import (
    DENSE_L16,
    DENSE_TINY,
    Options,
    add_options,
    engine_sections,
    options_of,
)
from benchmarks.model.model_shapes import ModelConfig, write_shape
from benchmarks.records.command_line import make_parser, run
from benchmarks.records.record import Figure
from raydix.ids import RequestId, Slot
from raydix.runtime.actors.arena_copies import ArenaCopies
from raydix.runtime.actors.gpu_model import GpuModel, RankPlace
from raydix.runtime.actors.links.link import LinkClosed
from raydix.runtime.actors.rank_threads import RankThreads
from raydix.runtime.actors.torch_builder import build_torch_model
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.config.loading import load_config
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.codec import Message, decode, encode
from raydix.runtime.messages.plan import AddedRequest, DeviceSampling, StepPlan, TableChanges
from raydix.runtime.model.staging.columns import Column
from raydix.runtime.model.steps.captured_steps import CapturedOutput, OnLayer
from raydix.runtime.model.steps.decode_columns import PackedColumns
from raydix.runtime.model.steps.group_place import read_lane_sizes
from raydix.runtime.model.steps.runner import ModelRunner
from raydix.runtime.model.steps.shape_choice import choose_own_shape
from raydix.runtime.model.steps.step_rows import read_rows
from raydix.runtime.model.steps.step_shapes import StepShape

BATCHES = (1, 16, 128)
PAGE_TOKENS = 64
PROMPT_TOKENS = 512
PAGES_EACH = 16
NUM_STEPS, NUM_WARM_STEPS = 2000, 200
RUNS, STEPS_A_RUN = 75, 10
IN_FLIGHT = 2
REPEATS = 15
NS_PER_US = 1e3


class IdleSteps:
    """Captured steps of a device that does nothing: the same tokens at once, whatever is asked."""

    def __init__(self, runner: ModelRunner, vocab_size: int) -> None:
        self.shapes: Sequence[StepShape] = runner.captured_shapes()
        self._vocab_size = vocab_size
        self._outputs = {shape: self._output(shape) for shape in self.shapes}

    def _output(self, shape: StepShape) -> CapturedOutput:
        return CapturedOutput(
            hidden_TC=torch.zeros(shape.num_tokens, 1),
            logits_RV=torch.zeros(1, 1).expand(shape.num_rows, self._vocab_size),
            token_ids_R=torch.ones(shape.num_rows, dtype=torch.int32),
        )

    def replay(
        self, columns: Column, shape: StepShape, on_layer: OnLayer | None = None
    ) -> CapturedOutput:
        """Take the columns and do nothing."""
        return self._outputs[shape]

    def replay_cut(self, shape: StepShape) -> None:
        """No row cuts."""


class WireLink:
    """A link whose messages are bytes on their way, as over a socket, but stay in this process."""

    peer = None

    def __init__(self) -> None:
        self._plans: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._arrived = os.eventfd(0)
        self.results: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def plan(self, plan: bytes) -> None:
        """Hand a plan to the actor."""
        self._put(plan)

    def _put(self, plan: bytes | None) -> None:
        self._plans.put(plan)
        os.eventfd_write(self._arrived, 1)

    def receive(self) -> Message:
        """The next plan."""
        body = self._plans.get()
        if body is None:
            raise LinkClosed("there are no more plans")
        return decode(body)

    def has_message(self) -> bool:
        """Whether a plan waits."""
        return not self._plans.empty()

    def wait_message_or(self, descriptor: int) -> bool:
        """Wait for a plan, or for a descriptor."""
        arrivals = select.poll()
        for each in (self._arrived, descriptor):
            arrivals.register(each, select.POLLIN)
        while self._plans.empty():
            ready = [each for each, _ in arrivals.poll()]
            if self._arrived in ready:
                os.eventfd_read(self._arrived)
            if descriptor in ready:
                break
        return self.has_message()

    def send(self, message: Message) -> None:
        """Take a result."""
        self.results.put(encode(message))

    def wait_ended(self) -> None:
        """The watch of a link is not part of a step."""
        threading.Event().wait()

    def close(self) -> None:
        """End what waits for a plan."""
        self._put(None)


def make_idle(runner: Any, vocab_size: int) -> None:
    """Let a runner replay steps that do nothing."""
    runner._captured = IdleSteps(runner, vocab_size)


def requests(num_requests: int) -> StepPlan:
    """The plan that brings a batch of greedy requests, each with pages for its whole length."""
    return StepPlan(
        step=0,
        added=tuple(
            AddedRequest(
                slot=Slot(slot),
                request_id=RequestId(str(slot)),
                token_ids=int32_array(np.zeros(PROMPT_TOKENS)),
                num_prompt_tokens=PROMPT_TOKENS,
                sampling=DeviceSampling(seed=slot),
            )
            for slot in range(num_requests)
        ),
        tables=(
            TableChanges(
                slots=int32_array(range(num_requests)),
                starts=int32_array([0] * num_requests),
                counts=int32_array([PAGES_EACH] * num_requests),
                page_ids=int32_array(range(1, PAGES_EACH * num_requests + 1)),
            ),
        ),
    )


def decodes(step: int, num_requests: int, num_repeats: int = 0) -> StepPlan:
    """A token of each request, and of each repetition; some of them enter a new page."""
    position = PROMPT_TOKENS + step % PAGE_TOKENS
    entering = [slot for slot in range(num_requests) if (slot + step) % PAGE_TOKENS == 0]
    tables = (
        TableChanges(
            slots=int32_array(entering),
            starts=int32_array([PROMPT_TOKENS // PAGE_TOKENS] * len(entering)),
            counts=int32_array([1] * len(entering)),
            page_ids=int32_array([slot + 1 for slot in entering]),
        ),
    )
    return StepPlan(
        step=step,
        tables=tables if entering else (),
        row_slots=int32_array(range(num_requests)),
        row_starts=int32_array([position] * num_requests),
        row_num_tokens=int32_array([1] * num_requests),
        row_write_starts=int32_array([position] * num_requests),
        row_output_positions=int32_array([1 + step] * num_requests),
        row_loads=int32_array([-1] * num_requests),
        row_repeats=int32_array([num_repeats] * num_requests if num_repeats else ()),
    )


def thread_us(threads: Mapping[str, threading.Thread]) -> dict[str, float]:
    """The processor time that each thread has taken."""
    return {
        name: time.clock_gettime_ns(time.pthread_getcpuclockid(thread.ident or 0)) / NS_PER_US
        for name, thread in threads.items()
    }


def actor_us(
    model: GpuModel, num_requests: int, num_steps: int, num_repeats: int = 0
) -> dict[str, float]:
    """Processor time of the launcher and completer for each step, and wall time.

    Each plan stands for `num_repeats` further steps.
    """
    rank = RankThreads("host-share", 0, model, ArenaCopies(), patience_s=60.0, on_fatal=sys.exit)
    link = WireLink()
    links = [link]

    def dial(stop: threading.Event) -> Any:
        if not links:
            stop.wait()
            raise LinkClosed("the benchmark has ended")
        return links.pop()

    rank.start(dial)
    threads = {thread.name: thread for thread in rank.threads if thread.name != "reporter"}
    link.plan(encode(requests(num_requests)))
    link.results.get()
    steps_each = 1 + num_repeats
    plans = [
        encode(decodes(step + 1, num_requests, num_repeats))
        for step in range(0, num_steps, steps_each)
    ]
    warm = min(NUM_WARM_STEPS, num_steps // 2) // steps_each
    before, began_s = thread_us(threads), time.monotonic()
    for index, plan in enumerate(plans):
        if index == warm:
            before, began_s = thread_us(threads), time.monotonic()
        link.plan(plan)
        # A plan that came sooner would end the one that stands.
        num_due = steps_each if num_repeats else int(index >= IN_FLIGHT - 1)
        for _ in range(num_due):
            link.results.get()
    for _ in range(0 if num_repeats else IN_FLIGHT - 1):
        link.results.get()
    wall_s, after = time.monotonic() - began_s, thread_us(threads)
    rank.stop()
    counted = (len(plans) - warm) * steps_each
    of_threads = {name: (after[name] - before[name]) / counted for name in threads}
    return {**of_threads, "wall": 1e6 * wall_s / counted}


def part_us(runner: ModelRunner, num_requests: int) -> dict[str, float]:
    """The time of each part of a step by itself."""
    slots, decoder = runner.slots, runner._decoder
    plan = decodes(1, num_requests)
    body = encode(plan)
    captured = runner._captured
    assert captured is not None
    rows = read_rows(plan, slots)
    sampling = rows.sampling_rows(slots.sampling)
    sizes = read_lane_sizes(plan, None)
    shape = choose_own_shape(decoder, captured.shapes, rows, sizes, None)
    assert shape is not None
    packed = PackedColumns(slots)
    entering = decodes(PAGE_TOKENS, num_requests)

    def wait(transfer_id: int, layer: int) -> None:
        raise AssertionError("no row waits")

    output = runner.execute(plan, wait)
    result = output.to_result(0, 1, 0.0)
    parts: dict[str, Callable[[], object]] = {
        "plan decoded": lambda: decode(body),
        "tables changed": lambda: runner.apply(entering),
        "rows read": lambda: read_rows(plan, slots).sampling_rows(slots.sampling),
        "shape chosen": lambda: choose_own_shape(decoder, captured.shapes, rows, sizes, None),
        "columns made": lambda: packed.pack(rows, sampling, shape),
        "step enqueued, all parts": lambda: runner.execute(plan, wait),
        "result made": lambda: output.to_result(0, 1, 0.0),
        "result encoded": lambda: encode(result),
    }
    return {name: timed_us(call) for name, call in parts.items()}


def timed_us(call: Callable[[], object]) -> float:
    """Processor time of a call by this thread, in microseconds: the median of runs."""
    taken = []
    for _ in range(RUNS):
        began_ns = time.thread_time_ns()
        for _ in range(STEPS_A_RUN):
            call()
        taken.append((time.thread_time_ns() - began_ns) / STEPS_A_RUN / NS_PER_US)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    return median(taken)


def measure(
    config: EngineConfig, model: GpuModel, batches: Sequence[int], num_steps: int
) -> list[Figure]:
    """The figures of all batches."""
    runner = model.runner
    assert isinstance(runner, ModelRunner)
    figures = []
    for num_requests in batches:
        told = actor_us(model, num_requests, num_steps)
        repeated = actor_us(model, num_requests, num_steps, REPEATS)
        told |= {f"{name}, repeated": repeated[name] for name in ("launcher", "completer")}
        runner.apply(requests(num_requests))
        parts = part_us(runner, num_requests)
        runner.apply(StepPlan(step=0, removed_slots=int32_array(range(num_requests))))
        if config.model.device == "cuda":
            # That thread spins while it waits for the device.
            told["completer, spinning"] = told["completer"]
            told["completer"] = parts["result made"] + parts["result encoded"]
        told["host"] = told["launcher"] + told["completer"]
        for name, value in (told | parts).items():
            figures.append(Figure(name=f"{name}, batch {num_requests}", value=value, unit="us"))
            print(f"batch {num_requests}: {name}: {value:.1f} us", file=sys.stderr, flush=True)
    return figures


def make_model(config: EngineConfig, vocab_size: int) -> GpuModel:
    """The configured model, with steps that do nothing on the CPU."""
    loaded = build_torch_model(config, RankPlace(rank=0, device_index=0))
    model = loaded.prepare((max(BATCHES) * PAGES_EACH,))
    model.enter_thread()
    if config.model.device == "cpu":
        make_idle(model.runner, vocab_size)
    return model


def configuration(options: Options, folder: str) -> EngineConfig:
    """An engine whose slots hold the largest batch."""
    sections = engine_sections(
        max_model_len=1024,
        page_size=PAGE_TOKENS,
        l1_pages=max(BATCHES) * PAGES_EACH,
        l2_bytes=None,
        chunk_tokens=1024,
        max_running_requests=max(BATCHES),
    )
    model = {"path": folder, "load_format": "dummy", "device": options.device}
    return load_config({"model": model}, sections)


def main(options: Options) -> int:
    """Measure and report."""
    is_idle = options.device == "cpu"
    model: ModelConfig = DENSE_TINY if is_idle else DENSE_L16
    batches, num_steps = (BATCHES[:2], 40) if options.is_tiny else (BATCHES, NUM_STEPS)
    with TemporaryDirectory(prefix="raydix-benchmark-") as folder:
        write_shape({**model, "max_position_embeddings": 4096}, Path(folder))
        config = configuration(options, folder)
        built = make_model(config, int(model["vocab_size"]))
        figures = measure(config, built, batches, num_steps)
    return options.report("host_share", {"steps": num_steps}, figures)


def command() -> int:
    """Read the command line and measure."""
    command_line = make_parser(__doc__)
    add_options(command_line, Options())
    return main(options_of(command_line.parse_args()))


if __name__ == "__main__":
    run(command)
