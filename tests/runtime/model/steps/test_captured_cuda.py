"""Captured steps on a GPU give what their operations give one by one, and compile nothing."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from raydix.runtime.messages.plan import (
    DeviceSampling,
    StepResult,
)
from raydix.runtime.model.decoder.decoder import Decoder
from raydix.runtime.model.steps.runner import ModelRunner
from tests.runtime.model.steps.captured_runner import (
    LOGPROBS,
    MAX_SLOTS,
    fresh,
    make_runner,
    start,
    start_all,
    step,
)
from tests.runtime.model.steps.test_cuda import assert_same_scores

pytestmark = pytest.mark.gpu
CONTEXTS = (0, 1, 63, 500, 940)
EXTENSIONS = (2, 16, 17, 31, 64, 65, 127, 128)


def extend(
    runner: ModelRunner, context: int, num_tokens: int
) -> tuple[list[StepResult], torch.Tensor]:
    """Results of the extension and of the token after it, and the pool but for the padding page."""
    start(runner, context + num_tokens)
    runner._pools[0].zero_()
    if context:
        step(runner, 0, context, -1)
    results = [step(runner, context, num_tokens, 0), step(runner, context + num_tokens, 1, 1)]
    return results, runner._pools[0][1:].float()


@pytest.mark.parametrize("context", CONTEXTS)
def test_a_replayed_extension_gives_what_its_operations_give(
    runners: tuple[ModelRunner, ModelRunner], context: int
) -> None:
    is_float32 = runners[0]._pools[0].dtype == torch.float32
    tolerance = 1e-4 if is_float32 else 0.15

    for num_tokens in EXTENSIONS:
        (expected, expected_pool), (results, pool) = (
            extend(runner, context, num_tokens) for runner in runners
        )

        torch.testing.assert_close(pool, expected_pool, atol=tolerance, rtol=tolerance)
        for result, other in zip(results, expected, strict=True):
            entry, other_entry = result.logprobs[0], other.logprobs[0]
            assert entry is not None
            assert other_entry is not None
            assert entry.logprobs == pytest.approx(other_entry.logprobs, abs=tolerance)
            assert_same_scores(result, other, tolerance)
            if is_float32:
                assert result.token_ids.tolist() == other.token_ids.tolist()


def test_replaying_again_gives_the_same_bits(runners: tuple[ModelRunner, ModelRunner]) -> None:
    _, captured = runners
    (first, first_pool), (second, second_pool) = (extend(captured, 500, 40) for _ in range(2))

    assert torch.equal(first_pool, second_pool)
    assert [result.logprobs for result in first] == [result.logprobs for result in second]


SAMPLED = (
    DeviceSampling(seed=0),
    DeviceSampling(seed=1, temperature=1.0),
    DeviceSampling(seed=2, temperature=0.8, top_k=50, top_p=0.95),
    DeviceSampling(seed=3, temperature=1.5, min_p=0.02),
)


@pytest.mark.parametrize(
    "sampling", [SAMPLED[:1], SAMPLED[1:2], SAMPLED[2:3], SAMPLED[3:], SAMPLED[1:]], ids=len
)
def test_a_captured_step_samples_within_its_graphs(
    decoder: Decoder, sampling: tuple[DeviceSampling, ...]
) -> None:
    """An operation outside of them would take memory for its result."""
    eager, captured = (make_runner(decoder, 16) for _ in range(2))
    captured.capture_graphs()
    plans = [start_all(runner, sampling, 40) for runner in (eager, captured)]
    expected = eager.execute(plans[0], lambda load, layer: None).to_result(0, 0, 0.0)
    torch.cuda.synchronize()
    allocated = torch.cuda.memory_stats()["allocation.all.allocated"]

    output = captured.execute(plans[1], lambda load, layer: None)

    assert torch.cuda.memory_stats()["allocation.all.allocated"] == allocated
    if decoder.dtype == torch.float32:
        assert output.to_result(0, 0, 0.0).token_ids.tolist() == expected.token_ids.tolist()


def test_an_adjusted_row_takes_memory_outside_of_the_graphs(decoder: Decoder) -> None:
    """The control of the test before."""
    captured = make_runner(decoder, 16)
    captured.capture_graphs()
    plan = start_all(captured, (DeviceSampling(seed=0, temperature=1.0, presence_penalty=0.5),), 40)
    torch.cuda.synchronize()
    allocated = torch.cuda.memory_stats()["allocation.all.allocated"]

    captured.execute(plan, lambda load, layer: None)

    assert torch.cuda.memory_stats()["allocation.all.allocated"] > allocated


def test_sampling_the_largest_batch_takes_no_more_than_warm_up_did(decoder: Decoder) -> None:
    runner = make_runner(decoder, 16)
    runner.warm_up()
    runner.capture_graphs()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    runner.warm_up()
    expected = torch.cuda.max_memory_allocated()
    everything = replace(
        LOGPROBS, temperature=1.0, top_k=9, top_p=0.5, presence_penalty=1.0, frequency_penalty=1.0
    )
    plan = start_all(runner, (everything,) * MAX_SLOTS, 60)
    torch.cuda.reset_peak_memory_stats()

    runner.execute(plan, lambda load, layer: None).to_result(0, 0, 0.0)

    assert torch.cuda.max_memory_allocated() <= expected


@pytest.fixture
def compiled() -> Iterator[list[str]]:
    """Names of the kernels that Triton compiles from now on."""
    knobs = pytest.importorskip("triton").knobs
    names: list[str] = []

    def record(**details: object) -> None:
        names.append(str(details["repr"]))

    knobs.runtime.jit_cache_hook = record
    yield names
    knobs.runtime.jit_cache_hook = None


def test_no_step_compiles_a_kernel_after_start_up(decoder: Decoder, compiled: list[str]) -> None:
    runner = make_runner(decoder, 16)
    runner.warm_up()
    runner.capture_graphs()
    del compiled[:]

    for context in CONTEXTS:
        for num_tokens in (*EXTENSIONS, 129, 148):
            extend(runner, context, num_tokens)
    adjusted = tuple(replace(each, presence_penalty=0.5) for each in SAMPLED)
    for steps in (runner._captured, None):
        runner._captured = steps
        for sampling in (SAMPLED, adjusted):
            for count in (1, 2, 3):
                plan = start_all(fresh(runner), sampling[-count:], 40)
                runner.execute(plan, lambda load, layer: None).to_result(0, 0, 0.0)

    assert not compiled
    extend(make_runner(decoder, 4), 63, 16)
    assert compiled, "a page size that was not warmed up must be noticed"
