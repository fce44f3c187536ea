"""Measure what sampling adds to a greedy step on the device, for a large vocabulary.

    python -m benchmarks.sampler

The launches of a captured step, in CUDA graphs, on bf16 logits of 151,936 tokens. The bars are 3 %
(temperature alone) and 5 % (with top-p 0.95 and top-k 50) of the greedy time per token of moe_l12
at that batch, measured on one H200.
"""

import numpy as np
import torch

from benchmarks.device.gpu_timing import capture, median_ms, run_kernel_benchmark
from benchmarks.records.command_line import run
from benchmarks.records.record import Figure
from raydix.kernels.sampling.columns import SamplingColumns, as_sampling_columns
from raydix.kernels.sampling.sampler import sample_cut, sample_whole
from raydix.runtime.messages.plan import DeviceSampling
from raydix.runtime.model.slots.slot_sampling import SlotSampling

VOCAB_SIZE = 151_936
GREEDY_TPOT_MS = {1: 1.04, 32: 3.70, 128: 4.79}
GREEDY = DeviceSampling(seed=0)
WHOLE = DeviceSampling(seed=0, temperature=1.0)
CUT = DeviceSampling(seed=0, temperature=1.0, top_p=0.95, top_k=50)
NUCLEUS = DeviceSampling(seed=0, temperature=1.0, top_p=0.95)


def columns_of(sampling: DeviceSampling, num_rows: int) -> SamplingColumns:
    """The same for all rows, at other positions."""
    slots = SlotSampling(1)
    slots.put(0, sampling)
    columns = slots.columns(np.zeros(num_rows, dtype=np.int64), np.arange(num_rows))
    return as_sampling_columns(
        {name: torch.from_numpy(column).cuda() for name, column in columns.items()}
    )


def sampling_ms(logits_RV: torch.Tensor, sampling: DeviceSampling) -> float:
    """The time to sample as a captured step does, with a second graph where rows cut."""
    columns = columns_of(sampling, logits_RV.shape[0])
    token_ids_R = sample_whole(logits_RV, columns)
    whole = capture(lambda: sample_whole(logits_RV, columns))
    if sampling not in (CUT, NUCLEUS):
        return median_ms(whole)
    cut = capture(lambda: sample_cut(logits_RV, columns, token_ids_R))
    return median_ms(lambda: (whole(), cut()))


def measure() -> list[Figure]:
    """Each way to sample, by number of rows."""
    figures = []
    for num_rows, tpot_ms in GREEDY_TPOT_MS.items():
        logits_RV = (3 * torch.randn(num_rows, VOCAB_SIZE, device="cuda")).bfloat16()
        greedy_ms = sampling_ms(logits_RV, GREEDY)
        figures.append(Figure(name=f"greedy, {num_rows} rows", value=1e3 * greedy_ms, unit="us"))

        for name, sampling, share in (
            ("temperature", WHOLE, 0.03),
            ("top-p and top-k", CUT, 0.05),
            ("top-p", NUCLEUS, 0.05),
        ):
            extra_us = 1e3 * (sampling_ms(logits_RV, sampling) - greedy_ms)
            figures.append(
                Figure(
                    name=f"{name} over greedy, {num_rows} rows",
                    value=extra_us,
                    unit="us",
                    max_value=1e3 * share * tpot_ms,
                )
            )
    return figures


def main() -> int:
    """Measure and report."""
    config = {"vocab_size": VOCAB_SIZE, "dtype": "bfloat16", "logits": "3 x normal"}
    return run_kernel_benchmark("sampler", __doc__, config, measure)


if __name__ == "__main__":
    run(main)
