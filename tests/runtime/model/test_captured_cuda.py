"""Captured steps on a GPU give what their operations give one by one, and compile nothing."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

from raydix.ids import RequestId, Slot
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.plan import (
    AddedRequest,
    DeviceSampling,
    StepPlan,
    StepResult,
    TableChanges,
)
from raydix.runtime.model.decoder import Decoder, make_decoder
from raydix.runtime.model.rope_spec import DefaultRope
from raydix.runtime.model.runner import ModelRunner
from raydix.runtime.model.spec import (
    AttentionSpec,
    DenseMlpSpec,
    LayerSpec,
    ModelSpec,
    NormSpec,
)
from tests.runtime.model.test_cuda import assert_same_scores

pytestmark = pytest.mark.gpu
MAX_MODEL_LEN, NUM_PAGES, MAX_SLOTS = 1100, 160, 3
NORM = NormSpec(eps=1e-6)
LAYER = LayerSpec(
    attention=AttentionSpec(
        num_heads=8,
        num_kv_heads=2,
        head_dim=64,
        scale=64**-0.5,
        rope=DefaultRope(theta=10_000.0),
        qkv_bias=False,
        output_bias=False,
        qk_norm=NORM,
    ),
    mlp=DenseMlpSpec(intermediate_size=512, bias=False),
    norm=NORM,
)
SPEC = ModelSpec(
    vocab_size=500, hidden_size=512, layers=(LAYER,) * 3, final_norm=NORM, tied_embeddings=False
)
TOKENS = np.random.default_rng(0).integers(0, SPEC.vocab_size, (2, MAX_MODEL_LEN))
LOGPROBS = DeviceSampling(seed=0, num_logprobs=20, num_prompt_logprobs=3)
CONTEXTS = (0, 1, 63, 500, 940)
EXTENSIONS = (2, 16, 17, 31, 64, 65, 127, 128)


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def decoder(request: pytest.FixtureRequest) -> Decoder:
    torch.manual_seed(0)
    decoder = make_decoder(SPEC, device=torch.device("cuda"), dtype=request.param)
    for parameter in decoder.parameters():
        parameter.normal_(std=0.05)
    return decoder


@pytest.fixture(params=[16, 64])
def runners(decoder: Decoder, request: pytest.FixtureRequest) -> tuple[ModelRunner, ModelRunner]:
    """Without and with captured steps."""
    eager, captured = (make_runner(decoder, request.param) for _ in range(2))
    captured.capture_graphs()
    return eager, captured


def make_runner(decoder: Decoder, page_size: int) -> ModelRunner:
    heads = LAYER.attention
    shape = (NUM_PAGES + 1, SPEC.num_layers, heads.num_kv_heads, 2, page_size, heads.head_dim)
    pool = torch.zeros(shape, device="cuda", dtype=decoder.dtype)
    return ModelRunner(
        decoder,
        (pool,),
        page_size=page_size,
        max_slots=MAX_SLOTS,
        max_model_len=MAX_MODEL_LEN,
        device=torch.device("cuda"),
    )


def start(runner: ModelRunner, num_tokens: int, sampling: DeviceSampling = LOGPROBS) -> None:
    """One request in slot 1 and as few pages as its tokens and one more need."""
    num_pages = num_tokens // runner.slots.page_size + 1
    added = AddedRequest(
        slot=Slot(1),
        request_id=RequestId("1"),
        token_ids=int32_array(TOKENS[0, :num_tokens]),
        num_prompt_tokens=num_tokens,
        sampling=sampling,
    )

    tables = TableChanges(
        slots=int32_array([1]),
        starts=int32_array([0]),
        counts=int32_array([num_pages]),
        page_ids=int32_array(np.random.default_rng(1).permutation(NUM_PAGES)[:num_pages] + 1),
    )

    removed = int32_array(np.flatnonzero(runner.slots.is_taken))
    runner.apply(StepPlan(step=0, removed_slots=removed, added=(added,), tables=(tables,)))


def step(runner: ModelRunner, first: int, num_tokens: int, output_position: int) -> StepResult:
    plan = StepPlan(
        step=0,
        row_slots=int32_array([1]),
        row_starts=int32_array([first]),
        row_num_tokens=int32_array([num_tokens]),
        row_write_starts=int32_array([first]),
        row_output_positions=int32_array([output_position]),
        row_loads=int32_array([-1]),
    )
    runner.apply(plan)
    return runner.execute(plan, lambda load, layer: None).to_result(0, 0, 0.0)


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


def fresh(runner: ModelRunner) -> ModelRunner:
    """Without requests."""
    runner.apply(StepPlan(step=0, removed_slots=int32_array(np.flatnonzero(runner.slots.is_taken))))
    return runner


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


@pytest.mark.parametrize("num_tokens", [2, 130, 300, 1000])
def test_a_prompt_beside_decodes_is_replayed_layer_by_layer(
    runners: tuple[ModelRunner, ModelRunner], num_tokens: int
) -> None:
    """Its cached prefix comes into the pool a layer at a time, as a load would bring it."""
    is_float32 = runners[0]._pools[0].dtype == torch.float32
    tolerance = 1e-4 if is_float32 else 0.15
    found = []
    for runner in runners:
        plan, pages = start_beside_decodes(runner, num_tokens)
        pool = runner._pools[0]
        stored = pool[pages].clone()
        pool[pages] = 0
        waits: list[int] = []

        def arrive(load: int, layer: int) -> None:
            waits.append(layer)  # noqa: B023
            pool[pages, layer] = stored[:, layer]  # noqa: B023

        result = runner.execute(plan, arrive).to_result(0, 0, 0.0)
        assert waits == list(range(SPEC.num_layers))
        found.append((result, pool[1:].float()))

    (expected, expected_pool), (result, pool) = found
    torch.testing.assert_close(pool, expected_pool, atol=tolerance, rtol=tolerance)
    for entry, other in zip(result.logprobs, expected.logprobs, strict=True):
        assert entry is not None
        assert other is not None
        assert entry.logprobs == pytest.approx(other.logprobs, abs=tolerance)


def start_beside_decodes(runner: ModelRunner, num_tokens: int) -> tuple[StepPlan, torch.Tensor]:
    """A plan of two decodes and a prompt behind a cached prefix, and the pages of that prefix."""
    page_size, prefix = runner.slots.page_size, 64
    decodes = start_all(fresh(runner), (LOGPROBS,) * 2, 40)
    step_all(
        runner,
        replace(
            decodes,
            row_starts=decodes.row_starts * 0,
            row_write_starts=decodes.row_write_starts * 0,
            row_num_tokens=decodes.row_num_tokens * 39,
            row_output_positions=int32_array([-1, -1]),
        ),
    )

    first_page = 2 * (40 // page_size + 2) + 1
    num_pages = (prefix + num_tokens) // page_size + 1
    pages = range(first_page, first_page + num_pages)
    added = AddedRequest(
        slot=Slot(2),
        request_id=RequestId("2"),
        token_ids=int32_array(TOKENS[1, : prefix + num_tokens]),
        num_prompt_tokens=prefix + num_tokens,
        sampling=LOGPROBS,
    )
    table = TableChanges(
        slots=int32_array([2]),
        starts=int32_array([0]),
        counts=int32_array([num_pages]),
        page_ids=int32_array(pages),
    )
    runner.apply(StepPlan(step=1, added=(added,), tables=(table,)))
    whole = replace(
        decodes,
        row_slots=int32_array([2]),
        row_starts=int32_array([0]),
        row_num_tokens=int32_array([prefix]),
        row_write_starts=int32_array([0]),
        row_output_positions=int32_array([-1]),
        row_loads=int32_array([-1]),
    )
    step_all(runner, whole)
    mixed = replace(
        decodes,
        row_slots=int32_array([2, 0, 1]),
        row_starts=int32_array([prefix, 39, 39]),
        row_num_tokens=int32_array([num_tokens, 1, 1]),
        row_write_starts=int32_array([prefix, 39, 39]),
        row_output_positions=int32_array([0, 0, 0]),
        row_loads=int32_array([5, -1, -1]),
    )
    return mixed, torch.tensor(list(pages)[: prefix // page_size], device="cuda")


def step_all(runner: ModelRunner, plan: StepPlan) -> None:
    runner.execute(plan, lambda load, layer: None).to_result(0, 0, 0.0)


SAMPLED = (
    DeviceSampling(seed=0),
    DeviceSampling(seed=1, temperature=1.0),
    DeviceSampling(seed=2, temperature=0.8, top_k=50, top_p=0.95),
    DeviceSampling(seed=3, temperature=1.5, min_p=0.02),
)


def start_all(
    runner: ModelRunner, sampling: tuple[DeviceSampling, ...], num_tokens: int
) -> StepPlan:
    """Requests that are computed but for their last token, and the plan that decodes them all."""
    count = len(sampling)
    pages_each = num_tokens // runner.slots.page_size + 2
    added = tuple(
        AddedRequest(
            slot=Slot(slot),
            request_id=RequestId(str(slot)),
            token_ids=int32_array(TOKENS[slot % 2, slot : slot + num_tokens]),
            num_prompt_tokens=num_tokens,
            sampling=each,
        )
        for slot, each in enumerate(sampling)
    )

    tables = TableChanges(
        slots=int32_array(range(count)),
        starts=int32_array([0] * count),
        counts=int32_array([pages_each] * count),
        page_ids=int32_array(range(1, count * pages_each + 1)),
    )

    runner.apply(StepPlan(step=0, added=added, tables=(tables,)))
    return StepPlan(
        step=1,
        row_slots=int32_array(range(count)),
        row_starts=int32_array([num_tokens - 1] * count),
        row_num_tokens=int32_array([1] * count),
        row_write_starts=int32_array([num_tokens - 1] * count),
        row_output_positions=int32_array([0] * count),
        row_loads=int32_array([-1] * count),
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
    runner.warm_up(64)
    runner.capture_graphs()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    runner.warm_up(64)
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
    runner.warm_up(512)
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
