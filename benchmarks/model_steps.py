"""Speed of the model runner alone: decode steps by batch, and cold prompts.

Run on a GPU: `python -m benchmarks.model_steps [--shape moe_l12] [--batches 1,8,32,64,128]
[--profile]`.
"""

import statistics
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from benchmarks.device.gpus import require_gpus
from benchmarks.engine.workloads import MAX_COLD_MS, MAX_IDLE_FRACTION, MAX_TPOT_MS
from benchmarks.model.bare_runner import add_requests, plan_rows
from benchmarks.model.model_shapes import SHAPES, write_config
from benchmarks.records.command_line import add_commit, add_results, make_parser, run
from benchmarks.records.record import Figure, report
from raydix.runtime.config.kv_shard import KvShard
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.plan import StepPlan
from raydix.runtime.model.checkpoint.dummy import make_dummy_model
from raydix.runtime.model.steps.runner import ModelRunner
from raydix.runtime.model.steps.step_output import StepOutput
from raydix.runtime.tiers.gpu_pool import make_pools

PAGE_SIZE = 64
PROMPT_TOKENS, OUTPUT_TOKENS = 256, 128
COLD_TOKENS, COLD_CHUNK = 16_384, 8192
EXTENSION_TOKENS = 16
TPOT_BARS_MS = {"moe_l12": MAX_TPOT_MS}
COLD_BARS_MS = {"dense_l16": MAX_COLD_MS}


class StepDriver:
    """Makes plans as a scheduler would that plans one step ahead."""

    def __init__(self, shape: str, max_requests: int) -> None:
        device = torch.device("cuda", 0)
        with tempfile.TemporaryDirectory() as folder:
            loaded = make_dummy_model(
                write_config(shape, Path(folder)), device=device, dtype=torch.bfloat16
            )

        self.spec = loaded.spec
        pages = max(max_requests * 13, COLD_TOKENS // PAGE_SIZE + 1)
        shard = KvShard(layout=loaded.kv_layout(PAGE_SIZE, "bfloat16"))
        self.pools = make_pools(shard, [pages], device)
        self.runner = ModelRunner(
            loaded.decoder,
            self.pools,
            page_size=PAGE_SIZE,
            max_slots=max_requests,
            max_model_len=COLD_TOKENS + 64,
            max_prefill_tokens=COLD_CHUNK,
            device=device,
        )
        self._rng = np.random.default_rng(0)
        self._step = 0

        self.warm_up_s = _seconds(self.runner.warm_up)
        self.capture_s = _seconds(self.runner.capture_graphs)

    def add(self, num_requests: int, num_tokens: int, num_pages: int) -> None:
        """Put greedy requests into slots 0.. with pages of their own."""
        prompts = self._rng.integers(1, self.spec.vocab_size, (num_requests, num_tokens))
        page_ids = self._rng.permutation(len(self.pools[0]) - 1)[: num_requests * num_pages] + 1
        self.runner.apply(add_requests(prompts, page_ids.reshape(num_requests, num_pages)))

    def remove(self, num_requests: int) -> None:
        """Free slots 0.. again."""
        self.runner.apply(StepPlan(step=0, removed_slots=int32_array(range(num_requests))))

    def step(
        self, slots: range, start: int, num_tokens: int, output_position: int | None
    ) -> StepOutput:
        """Enqueue one step of equal rows. `output_position` None: they sample nothing."""
        plan = plan_rows(self._step, slots, start, num_tokens, output_position)
        self._step += 1
        self.runner.apply(plan)
        return self.runner.execute(plan, lambda transfer, layer: None)

    def prefill(self, num_requests: int) -> None:
        """Compute all prompts, as many rows in a step as fit a chunk."""
        for slot in range(0, num_requests, COLD_CHUNK // PROMPT_TOKENS):
            stop = min(slot + COLD_CHUNK // PROMPT_TOKENS, num_requests)
            self.step(range(slot, stop), 0, PROMPT_TOKENS, 0).to_result(0, 0, 0.0)

    def decode(self, num_requests: int, num_steps: int) -> tuple[list[float], float, float]:
        """Seconds between results, of all, and of the passes on the device."""
        passes: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        in_flight: deque[StepOutput] = deque()
        arrived_s = [time.monotonic()]

        # One step ahead: a step is enqueued before the result of the one before it is read.
        for step in range(num_steps):
            events = (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
            events[0].record()
            in_flight.append(self.step(range(num_requests), PROMPT_TOKENS + step, 1, step + 1))
            events[1].record()
            passes.append(events)
            if len(in_flight) > 1:
                in_flight.popleft().to_result(0, step, 0.0)
                arrived_s.append(time.monotonic())

        in_flight.popleft().to_result(0, num_steps, 0.0)
        arrived_s.append(time.monotonic())
        device_s = sum(began.elapsed_time(ended) for began, ended in passes) / 1e3
        return np.diff(arrived_s).tolist(), arrived_s[-1] - arrived_s[0], device_s

    def cold(self) -> float:
        """Seconds from the first chunk to the first token of one long prompt."""
        began_s = time.monotonic()
        for start in range(0, COLD_TOKENS, COLD_CHUNK):
            stop = start + COLD_CHUNK
            output = self.step(range(1), start, COLD_CHUNK, 0 if stop == COLD_TOKENS else None)
        output.to_result(0, 0, 0.0)
        return time.monotonic() - began_s

    def extension(self) -> tuple[float, float]:
        """Seconds until a few tokens after a long prefix are enqueued, and until one is there."""
        began_s = time.monotonic()
        output = self.step(range(1), COLD_TOKENS, EXTENSION_TOKENS, 0)
        enqueued_s = time.monotonic()
        output.to_result(0, 0, 0.0)
        return enqueued_s - began_s, time.monotonic() - began_s


def _seconds(work: Callable[[], object]) -> float:
    began_s = time.monotonic()
    work()
    torch.cuda.synchronize()
    return time.monotonic() - began_s


def main() -> int:
    """Measure and report."""
    parser = make_parser(__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="moe_l12")
    parser.add_argument("--batches", default="1,8,32,64,128")
    parser.add_argument(
        "--profile", action="store_true", help="print the kernels that take longest, too"
    )
    add_commit(parser)
    add_results(parser, help="folder for the record")
    options = parser.parse_args()
    require_gpus(1)

    batches = [int(batch) for batch in options.batches.split(",")]
    driver = StepDriver(options.shape, max(batches))
    figures = [
        Figure(name="warm_up", value=driver.warm_up_s, unit="s"),
        Figure(name="capture", value=driver.capture_s, unit="s"),
    ]
    for batch in batches:
        figures += _decode_figures(driver, options.shape, batch)
        if options.profile:
            _print_profile(driver, f"decode of {batch}", batch)
    figures += _long_prompt_figures(driver, options.shape)
    if options.profile:
        _print_profile(driver, "cold prompt", None)

    return report(
        f"model_steps_{options.shape}",
        {
            "shape": options.shape,
            "page_size": PAGE_SIZE,
            "prompt": PROMPT_TOKENS,
            "output": OUTPUT_TOKENS,
        },
        figures,
        keep_in=options.results,
        at_commit=options.commit,
    )


def _decode_figures(driver: StepDriver, shape: str, batch: int) -> list[Figure]:
    driver.add(batch, PROMPT_TOKENS, 12)
    driver.prefill(batch)
    driver.decode(batch, 20)
    gaps_s, wall_s, _ = driver.decode(batch, OUTPUT_TOKENS)
    idle = driver.decode(batch, 500)
    driver.remove(batch)

    bar = TPOT_BARS_MS.get(shape, {}).get(batch)
    idle_fraction = Figure(
        name=f"idle_{batch}",
        value=1 - idle[2] / idle[1],
        unit="fraction",
        max_value=MAX_IDLE_FRACTION,
    )
    tpot = Figure(
        name=f"tpot_{batch}", value=statistics.median(gaps_s) * 1e3, unit="ms", max_value=bar
    )
    mean = Figure(name=f"mean_tpot_{batch}", value=wall_s / OUTPUT_TOKENS * 1e3, unit="ms")
    return [tpot, mean, idle_fraction]


def _long_prompt_figures(driver: StepDriver, shape: str) -> list[Figure]:
    driver.add(1, COLD_TOKENS, COLD_TOKENS // PAGE_SIZE + 1)
    cold_ms = statistics.median([driver.cold() for _ in range(5)]) * 1e3
    enqueued_s, done_s = zip(*[driver.extension() for _ in range(9)], strict=True)
    driver.remove(1)

    return [
        Figure(name="cold", value=cold_ms, unit="ms", max_value=COLD_BARS_MS.get(shape)),
        Figure(name="extension_enqueued", value=statistics.median(enqueued_s) * 1e3, unit="ms"),
        Figure(name="extension", value=statistics.median(done_s) * 1e3, unit="ms"),
    ]


def _print_profile(driver: StepDriver, title: str, batch: int | None) -> None:
    driver.add(
        batch or 1,
        PROMPT_TOKENS if batch else COLD_TOKENS,
        12 if batch else COLD_TOKENS // PAGE_SIZE + 1,
    )
    if batch:
        driver.prefill(batch)

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        if batch:
            driver.decode(batch, 10)
        else:
            driver.cold()
    driver.remove(batch or 1)

    table = profile.key_averages().table(
        sort_by="cuda_time_total", row_limit=22, max_name_column_width=70
    )
    print(title, table, sep="\n", file=sys.stderr)


if __name__ == "__main__":
    run(main)
