"""A small model on a GPU, whose steps may be captured, and plans for it."""

import numpy as np
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
from raydix.runtime.model.decoder.decoder import Decoder, make_decoder
from raydix.runtime.model.spec.rope_spec import DefaultRope
from raydix.runtime.model.spec.spec import (
    AttentionSpec,
    DenseMlpSpec,
    LayerSpec,
    ModelSpec,
    NormSpec,
)
from raydix.runtime.model.steps.runner import ModelRunner
from raydix.runtime.tiers.transfers import WaitLayer

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


def make_random_decoder(dtype: torch.dtype) -> Decoder:
    """Make a decoder of `SPEC` with random weights."""
    torch.manual_seed(0)
    decoder = make_decoder(SPEC, device=torch.device("cuda"), dtype=dtype)
    for parameter in decoder.parameters():
        parameter.normal_(std=0.05)
    return decoder


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


def step(
    runner: ModelRunner,
    first: int,
    num_tokens: int,
    output_position: int,
    wait_layer: WaitLayer | None = None,
) -> StepResult:
    """`wait_layer`: what the row's load, if there is one, is waited for with."""
    plan = StepPlan(
        step=0,
        row_slots=int32_array([1]),
        row_starts=int32_array([first]),
        row_num_tokens=int32_array([num_tokens]),
        row_write_starts=int32_array([first]),
        row_output_positions=int32_array([output_position]),
        row_loads=int32_array([-1 if wait_layer is None else 5]),
    )
    runner.apply(plan)
    return runner.execute(plan, wait_layer or (lambda load, layer: None)).to_result(0, 0, 0.0)


def fresh(runner: ModelRunner) -> ModelRunner:
    """The same runner without requests."""
    runner.apply(StepPlan(step=0, removed_slots=int32_array(np.flatnonzero(runner.slots.is_taken))))
    return runner


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
