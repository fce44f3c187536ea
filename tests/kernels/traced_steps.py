"""Compare the variants that are found for a model with those that random steps launch.

    python -m tests.kernels.traced_steps dense_l16 1 60 fp8_e4m3
    python -m tests.kernels.traced_steps moe_l12_awq 1 60 auto native
    python -m tests.kernels.traced_steps moe_l12 2/4 60

Needs Triton and no GPU: nothing is computed. The model is one of `benchmarks.model.model_shapes`
in its own sizes; the numbers are those of tensor-parallel ranks, after a stroke of ranks that share
experts, and of random steps, and what follows are `cache.kv_dtype` and `model.quantization`.
"""

import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.model.model_shapes import write_config
from raydix.kernels.compiling.variants import TargetGpu, compiling_for, trace
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.plan import StepPlan
from raydix.runtime.model.checkpoint.checkpoint_config import read_checkpoint_config
from raydix.runtime.model.steps.rehearsal import rehearsed_plans
from raydix.runtime.model.steps.runner import ModelRunner
from raydix.runtime.model.steps.step_variants import ShapedModel, model_variants
from tests.kernels.random_plans import MAX_MODEL_LEN, MAX_TOKENS, SAMPLINGS, random_plan

HOPPER = TargetGpu(capability=(9, 0), num_sms=132)


def configuration(folder: Path, tp: int, ep: int, kv_dtype: str, way: str) -> EngineConfig:
    """The configuration of an engine that serves a folder's model on GPUs."""
    return EngineConfig.model_validate(
        {
            "model": {
                "path": str(folder),
                "load_format": "dummy",
                "device": "cuda",
                "dtype": "bfloat16",
                "quantization": way,
                "max_model_len": MAX_MODEL_LEN,
            },
            "parallel": {"tp": tp, "dp": max(ep // tp, 1), "ep": ep},
            "cache": {"page_size": 64, "l2": None, "kv_dtype": kv_dtype},
            "scheduler": {"chunked_prefill_tokens": MAX_TOKENS, "max_running_requests": 130},
        }
    )


def carry_out(runner: ModelRunner, plan: StepPlan) -> None:
    """Carry out a plan in place of whatever was there."""
    taken = int32_array(np.flatnonzero(runner.slots.is_taken))
    runner.apply(StepPlan(step=0, removed_slots=taken))
    runner.apply(plan)
    runner.execute(plan, lambda load, layer: None)


def among_lanes(plan: StepPlan, rng: np.random.Generator, num_lanes: int) -> StepPlan:
    """The plan of the first of some lanes that step together, of which others have any rows."""
    if num_lanes == 1:
        return plan
    tokens = rng.choice([0, 1, 2, 100, int(rng.integers(1, MAX_TOKENS))], num_lanes)
    rows = np.minimum(tokens, 1)
    rows[0], tokens[0] = len(plan.row_slots), plan.row_num_tokens.sum()
    return replace(plan, group_rows=int32_array(rows), group_tokens=int32_array(tokens))


def run_random_steps(runner: ModelRunner, num_steps: int) -> None:
    """Run random plans, and those of a rehearsal."""
    rng = np.random.default_rng(0)
    for step in range(num_steps):
        plan = random_plan(rng, step)
        if len(plan.row_slots):
            carry_out(runner, among_lanes(plan, rng, runner.num_lanes))
    plans = rehearsed_plans(
        SAMPLINGS,
        max_slots=runner.slots.max_slots,
        max_model_len=MAX_MODEL_LEN,
        max_prefill_tokens=MAX_TOKENS,
        num_lanes=runner.num_lanes,
    )
    runner.apply(StepPlan(step=0, removed_slots=int32_array(np.flatnonzero(runner.slots.is_taken))))
    for plan in plans:
        runner.apply(plan)
        runner.execute(plan, lambda load, layer: None)


def main() -> int:
    """Print the variants that nobody has foreseen; their number is the exit status."""
    shape, num_steps = sys.argv[1], int(sys.argv[3])
    tp, ep = map(int, [*sys.argv[2].split("/"), "1"][:2])
    kv_dtype, way = [*sys.argv[4:6], "auto", "auto"][:2]
    with tempfile.TemporaryDirectory() as name:
        folder = write_config(shape, Path(name))
        config, checkpoint = (
            configuration(folder, tp, ep, kv_dtype, way),
            read_checkpoint_config(folder),
        )
        spec = checkpoint.served(config.model.quantization, "cuda", HOPPER.capability).spec
        with compiling_for(HOPPER):
            found = model_variants(config, spec, MAX_MODEL_LEN)
            model = ShapedModel(config, spec, MAX_MODEL_LEN)
            launched = trace(lambda: run_random_steps(model.runner, num_steps))

    for variant in sorted({*launched} - {*found}):
        print(f"not foreseen: {variant.kernel} {variant.specialization}")
    print(f"{shape}: {len(found)} variants, of which random steps launch {len(launched)}")
    return len({*launched} - {*found})


if __name__ == "__main__":
    sys.exit(main())
