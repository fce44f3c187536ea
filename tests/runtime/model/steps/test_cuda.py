"""The same code on a GPU: equal tokens and logits, and nothing that makes the host wait."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from raydix.ids import RequestId, Slot
from raydix.kernels.moe.routing import GroupLimitedRouting, Scoring, SoftmaxRouting
from raydix.kernels.pages.page_codec import Codec
from raydix.runtime.config.kv_shard import KvShard
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.plan import (
    AddedRequest,
    DeviceSampling,
    StepPlan,
    StepResult,
    TableChanges,
)
from raydix.runtime.model.decoder.decoder import Decoder, make_decoder
from raydix.runtime.model.spec.kv_groups import make_kv_layout
from raydix.runtime.model.spec.rope_spec import DefaultRope
from raydix.runtime.model.spec.spec import (
    AttentionSpec,
    DenseMlpSpec,
    LatentAttentionSpec,
    LayerSpec,
    ModelSpec,
    MoeMlpSpec,
    NormSpec,
)
from raydix.runtime.model.steps.runner import ModelRunner
from raydix.runtime.model.steps.step_output import StepOutput
from raydix.runtime.tiers.gpu_pool import make_pools

pytestmark = pytest.mark.gpu
NORM = NormSpec(eps=1e-6)
DENSE = LayerSpec(
    attention=AttentionSpec(
        num_heads=6,
        num_kv_heads=2,
        head_dim=16,
        scale=16**-0.5,
        rope=DefaultRope(theta=10_000.0),
        qkv_bias=False,
        output_bias=False,
        qk_norm=NORM,
    ),
    mlp=DenseMlpSpec(intermediate_size=96, bias=False),
    norm=NORM,
)
SPARSE = replace(
    DENSE,
    mlp=MoeMlpSpec(
        num_experts=6,
        experts_per_token=2,
        intermediate_size=40,
        routing=SoftmaxRouting(renormalise=True),
        shared=None,
    ),
)
SPEC = ModelSpec(
    vocab_size=300,
    hidden_size=64,
    layers=(SPARSE, DENSE, SPARSE),
    final_norm=NORM,
    tied_embeddings=False,
)
GROUP_LIMITED = replace(
    DENSE,
    mlp=MoeMlpSpec(
        num_experts=8,
        experts_per_token=3,
        intermediate_size=40,
        routing=GroupLimitedRouting(
            scoring=Scoring.SIGMOID,
            num_groups=4,
            groups_per_token=2,
            scores_per_group=2,
            renormalise=True,
            scale=2.5,
            has_correction_bias=True,
        ),
        shared=DenseMlpSpec(intermediate_size=40, bias=False),
    ),
)
LATENT_SPEC = replace(
    SPEC,
    layers=tuple(
        replace(
            layer,
            attention=LatentAttentionSpec(
                num_heads=6,
                q_lora_rank=24,
                kv_lora_rank=32,
                qk_nope_head_dim=8,
                qk_rope_head_dim=16,
                v_head_dim=8,
                rope=DefaultRope(theta=10_000.0),
                has_interleaved_pairs=True,
                scale=24**-0.5,
                bias=False,
                norm=NORM,
            ),
        )
        for layer in (DENSE, GROUP_LIMITED)
    ),
)
"""A prompt's rows are expanded, later ones are not."""
SAMPLING = (
    DeviceSampling(seed=1),
    DeviceSampling(seed=2, temperature=1.0, top_k=20, top_p=0.9, min_p=0.01),
    DeviceSampling(
        seed=3,
        repetition_penalty=1.3,
        presence_penalty=0.2,
        frequency_penalty=0.1,
        biased_token_ids=(5, 40),
        biases=(1.5, -2.0),
        num_prompt_logprobs=2,
    ),
    DeviceSampling(
        seed=4, temperature=0.7, min_tokens=5, masked_until_min_tokens=(1, 2), num_logprobs=2
    ),
)
PROMPT_TOKENS, NUM_STEPS = 30, 12


def make_runner(decoder: Decoder, device: torch.device) -> ModelRunner:
    layout = make_kv_layout(decoder.kv_groups, page_size=8, dtype="float32", codec=Codec.NONE)
    pools = make_pools(KvShard(layout=layout), [40], device)
    return ModelRunner(decoder, pools, page_size=8, max_slots=5, max_model_len=64, device=device)


def make_plans(sampling: tuple[DeviceSampling, ...]) -> list[StepPlan]:
    """Prefill everything in one step, then decode: all planned before a token is known."""
    slots = range(len(sampling))
    prompts = np.random.default_rng(0).integers(0, SPEC.vocab_size, (len(sampling), PROMPT_TOKENS))
    added = tuple(
        AddedRequest(
            slot=Slot(slot),
            request_id=RequestId(str(slot)),
            token_ids=int32_array(prompts[slot]),
            num_prompt_tokens=PROMPT_TOKENS,
            sampling=sampling[slot],
        )
        for slot in slots
    )

    tables = TableChanges(
        slots=int32_array(slots),
        starts=int32_array(0 for _ in slots),
        counts=int32_array(8 for _ in slots),
        page_ids=int32_array(np.random.default_rng(1).permutation(40)[: 8 * len(sampling)] + 1),
    )

    plans = []
    for step in range(NUM_STEPS):
        start = 0 if step == 0 else PROMPT_TOKENS + step - 1
        columns = {
            "row_starts": start,
            "row_num_tokens": PROMPT_TOKENS if step == 0 else 1,
            "row_write_starts": start,
            "row_output_positions": step,
            "row_loads": -1,
        }
        plans.append(
            StepPlan(
                step=step,
                added=added if step == 0 else (),
                tables=(tables,) if step == 0 else (),
                row_slots=int32_array(slots),
                **{name: int32_array(value for _ in slots) for name, value in columns.items()},
            )
        )
    return plans


def run(runner: ModelRunner, plans: list[StepPlan]) -> list[StepOutput]:
    outputs = []
    for plan in plans:
        runner.apply(plan)
        outputs.append(runner.execute(plan, lambda load, layer: None))
    return outputs


def copy_to_cuda(decoder: Decoder) -> Decoder:
    copied = make_decoder(decoder.spec, device=torch.device("cuda"), dtype=torch.float32)
    copied.load_state_dict(decoder.state_dict())
    return copied


@pytest.fixture(params=[SPEC, LATENT_SPEC], ids=["heads", "latents"])
def decoder(request: pytest.FixtureRequest) -> Decoder:
    torch.manual_seed(0)
    decoder = make_decoder(request.param, device=torch.device("cpu"), dtype=torch.float32)
    for parameter in decoder.parameters():
        parameter.normal_(std=0.3)
    return decoder


@pytest.fixture(params=[False, True], ids=["eager", "graphs"])
def cuda_runner(decoder: Decoder, request: pytest.FixtureRequest) -> ModelRunner:
    runner = make_runner(copy_to_cuda(decoder), torch.device("cuda"))
    runner.warm_up()
    if request.param:
        runner.capture_graphs()
    return runner


def test_gpu_samples_the_tokens_of_the_cpu(decoder: Decoder, cuda_runner: ModelRunner) -> None:
    plans = make_plans(SAMPLING)
    on_cuda = run(cuda_runner, plans)
    on_cpu = run(make_runner(decoder, torch.device("cpu")), plans)

    for step, (cuda_output, cpu_output) in enumerate(zip(on_cuda, on_cpu, strict=True)):
        cuda_result, cpu_result = (
            cuda_output.to_result(0, step, 0.0),
            cpu_output.to_result(0, step, 0.0),
        )
        assert cuda_result.token_ids.tolist() == cpu_result.token_ids.tolist()
        cuda_entry, cpu_entry = cuda_result.logprobs[3], cpu_result.logprobs[3]
        assert cuda_entry is not None
        assert cpu_entry is not None
        assert cuda_entry.ranks == cpu_entry.ranks
        assert cuda_entry.logprobs == pytest.approx(cpu_entry.logprobs, abs=1e-3)
        assert cuda_result.scored_slots.tolist() == ([2] if step == 0 else [])
        assert_same_scores(cuda_result, cpu_result)


def assert_same_scores(result: StepResult, other: StepResult, tolerance: float = 1e-3) -> None:
    """Two steps told the same of prompts, but for rounding."""
    for part, wanted in zip(result.prompt_logprobs, other.prompt_logprobs, strict=True):
        assert (part.start, len(part), part.num_top) == (wanted.start, len(wanted), wanted.num_top)
        for bits, wanted_bits in (
            (part.logprob_bits, wanted.logprob_bits),
            (part.top_logprob_bits, wanted.top_logprob_bits),
        ):
            logprobs = wanted_bits.view(np.float32)
            assert bits.view(np.float32) == pytest.approx(logprobs, abs=tolerance)


@pytest.mark.parametrize("num_requests", [1, 3])
def test_greedy_requests_of_any_batch_get_the_tokens_of_the_cpu(
    decoder: Decoder, cuda_runner: ModelRunner, num_requests: int
) -> None:
    plans = make_plans((DeviceSampling(seed=0),) * num_requests)
    on_cuda = run(cuda_runner, plans)
    on_cpu = run(make_runner(decoder, torch.device("cpu")), plans)

    cuda_tokens = [output.to_result(0, 0, 0.0).token_ids.tolist() for output in on_cuda]
    assert cuda_tokens == [output.to_result(0, 0, 0.0).token_ids.tolist() for output in on_cpu]


def test_steps_are_enqueued_without_waiting_for_the_gpu(cuda_runner: ModelRunner) -> None:
    plans = make_plans(SAMPLING)
    run(cuda_runner, plans[:2])

    torch.cuda.set_sync_debug_mode("error")
    try:
        run(cuda_runner, plans[2:])
    finally:
        torch.cuda.set_sync_debug_mode("default")
