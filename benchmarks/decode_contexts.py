"""Measure decode steps of small batches with long contexts.

    python -m benchmarks.decode_contexts [--profile]

dense_l16 in bf16, 5,120 tokens of context in random pages of 64: the model runner alone, one step
ahead, as an engine drives it. The floor is the bytes of weights and KV at what an H200 reads.
"""

import statistics
import sys
import tempfile
from collections import deque
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch

from benchmarks.device.gpus import require_gpus
from benchmarks.model.bare_runner import add_requests, plan_rows
from benchmarks.model.model_shapes import write_config
from benchmarks.records.command_line import add_commit, add_results, make_parser, run
from benchmarks.records.record import Figure, report
from raydix.runtime.config.kv_shard import KvShard
from raydix.runtime.model.checkpoint.dummy import make_dummy_model
from raydix.runtime.model.steps.runner import ModelRunner
from raydix.runtime.model.steps.step_output import StepOutput
from raydix.runtime.tiers.gpu_pool import make_pools

SHAPE, PAGE_SIZE, CONTEXT_TOKENS, NUM_STEPS = "dense_l16", 64, 5120, 200
MAX_MS = {4: 1.35, 16: 2.0}
PEAK_BYTES = 4.3e12
"""Read from an H200's memory per second."""


class ContextDriver:
    """Decodes a batch of requests, each behind a context that nobody computed."""

    def __init__(self, max_requests: int) -> None:
        device = torch.device("cuda", 0)
        with tempfile.TemporaryDirectory() as folder:
            loaded = make_dummy_model(
                write_config(SHAPE, Path(folder)), device=device, dtype=torch.bfloat16
            )

        self._pages_each = CONTEXT_TOKENS // PAGE_SIZE + NUM_STEPS // PAGE_SIZE + 1
        shard = KvShard(layout=loaded.kv_layout(PAGE_SIZE, "bfloat16"))
        self.pools = make_pools(shard, [max_requests * self._pages_each], device)
        for page in self.pools[0]:
            page.normal_()
        read = [
            each
            for each in loaded.decoder.parameters()
            if each is not loaded.decoder.embedding.table.matrix_OC
        ]
        self.weight_bytes = sum(each.numel() * each.element_size() for each in read)
        self.runner = ModelRunner(
            loaded.decoder,
            self.pools,
            page_size=PAGE_SIZE,
            max_slots=max_requests,
            max_model_len=8192,
            device=device,
        )
        self.runner.warm_up()
        self.runner.capture_graphs()

        prompts = np.random.default_rng(0).integers(1, 1000, (max_requests, CONTEXT_TOKENS))
        page_ids = np.random.default_rng(1).permutation(max_requests * self._pages_each) + 1
        self.runner.apply(add_requests(prompts, page_ids.reshape(max_requests, -1)))
        self._step = 0

    def steps(self, num_requests: int) -> Iterator[StepOutput]:
        """Enqueue steps of one token for each of the first requests."""
        for step in range(NUM_STEPS):
            plan = plan_rows(self._step, range(num_requests), CONTEXT_TOKENS - 1 + step, 1, step)
            self._step += 1
            self.runner.apply(plan)
            yield self.runner.execute(plan, lambda transfer, layer: None)

    def step_ms(self, num_requests: int) -> float:
        """Median time of a step on the device."""
        in_flight: deque[StepOutput] = deque()
        stamps = [torch.cuda.Event(enable_timing=True)]
        stamps[0].record()
        for output in self.steps(num_requests):
            stamps.append(torch.cuda.Event(enable_timing=True))
            stamps[-1].record()
            in_flight.append(output)
            if len(in_flight) > 1:
                in_flight.popleft().to_result(0, 0, 0.0)

        in_flight.popleft().to_result(0, 0, 0.0)
        torch.cuda.synchronize()
        return statistics.median(before.elapsed_time(after) for before, after in pairwise(stamps))

    def floor_ms(self, num_requests: int) -> float:
        """Weights, but for the embedding, and KV."""
        page_bytes = self.pools[0][0].numel() * self.pools[0].element_size()
        kv_bytes = num_requests * CONTEXT_TOKENS * page_bytes / PAGE_SIZE
        return (self.weight_bytes + kv_bytes) / PEAK_BYTES * 1e3


def profile(driver: ContextDriver, num_requests: int) -> None:
    """Print what the kernels of a step take, those of all layers together."""
    for _, _ in zip(driver.steps(num_requests), range(20), strict=False):
        pass
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as trace:
        for _, _ in zip(driver.steps(num_requests), range(10), strict=False):
            pass
        torch.cuda.synchronize()
    table = trace.key_averages().table(
        sort_by="cuda_time_total", row_limit=18, max_name_column_width=60
    )
    print(f"batch {num_requests}", table, sep="\n", file=sys.stderr)


def main() -> int:
    """Measure and report."""
    parser = make_parser(__doc__)
    parser.add_argument(
        "--profile", action="store_true", help="print the kernels that take longest, too"
    )
    add_commit(parser)
    add_results(parser, help="folder for the record")
    options = parser.parse_args()
    require_gpus(1)

    driver = ContextDriver(max(MAX_MS))
    figures = []
    for batch, bar in MAX_MS.items():
        driver.step_ms(batch)
        figures.append(
            Figure(
                name=f"step_{batch}",
                value=driver.step_ms(batch),
                unit="ms",
                max_value=bar,
                baseline=driver.floor_ms(batch),
                baseline_name="weights and KV at 4.3 TB/s",
            )
        )
        if options.profile:
            profile(driver, batch)
    return report(
        "decode_contexts",
        {
            "device": torch.cuda.get_device_name(),
            "shape": SHAPE,
            "page_size": PAGE_SIZE,
            "context": CONTEXT_TOKENS,
        },
        figures,
        keep_in=options.results,
        at_commit=options.commit,
    )


if __name__ == "__main__":
    run(main)
