"""Steps in two halves sample what whole ones do: a step group of one rank, on any device."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from raydix.kernels.pages.page_codec import Codec
from raydix.moe.dispatch.loopback import LOOPBACK
from raydix.runtime.config.kv_shard import KvShard
from raydix.runtime.model.decoder.decoder import Decoder, make_decoder
from raydix.runtime.model.decoder.expert_ranks import ExpertRanks
from raydix.runtime.model.spec.kv_groups import make_kv_layout
from raydix.runtime.model.spec.spec import ModelSpec
from raydix.runtime.model.steps.overlap_times import step_times
from raydix.runtime.model.steps.runner import ModelRunner, never_halved
from raydix.runtime.tiers.gpu_pool import make_pools
from tests.runtime.model.steps.test_cuda import (
    LATENT_SPEC,
    SAMPLING,
    SPEC,
    assert_same_scores,
    make_plans,
    run,
)

GPU = pytest.param("cuda", marks=pytest.mark.gpu)
DEVICES = ["cpu", GPU]


def make_group_of_one(spec: ModelSpec, device: torch.device) -> Decoder:
    torch.manual_seed(0)
    ranks = ExpertRanks(
        rank=0, size=1, connect=lambda shape: LOOPBACK, max_tokens=512, max_low_latency_tokens=0
    )
    decoder = make_decoder(spec, device=device, dtype=torch.float32, expert_ranks=ranks)
    for parameter in decoder.parameters():
        parameter.normal_(std=0.3)
    return decoder


def make_runner(decoder: Decoder, *, is_halved: bool) -> ModelRunner:
    layout = make_kv_layout(decoder.kv_groups, page_size=8, dtype="float32", codec=Codec.NONE)
    return ModelRunner(
        decoder,
        make_pools(KvShard(layout=layout), [40], decoder.device),
        page_size=8,
        max_slots=5,
        max_model_len=64,
        max_prefill_tokens=5000,
        device=decoder.device,
        is_halved=(lambda num_tokens: True) if is_halved else never_halved,
    )


@pytest.mark.parametrize("spec", [SPEC, LATENT_SPEC], ids=["heads", "latents"])
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("num_rows", [3, 4])
def test_rows_sample_the_same_tokens_in_the_same_order(
    spec: ModelSpec, device: str, num_rows: int
) -> None:
    """Three prompts are cut within the second one; each asks something else of sampling."""
    decoder = make_group_of_one(spec, torch.device(device))
    whole, halved = (make_runner(decoder, is_halved=each) for each in (False, True))
    wants = tuple(replace(each, num_prompt_logprobs=2) for each in SAMPLING[-num_rows:])
    plans = make_plans(wants)

    expected = [each.to_result(0, 0, 0.0) for each in run(whole, plans)]
    results = [each.to_result(0, 0, 0.0) for each in run(halved, plans)]

    assert (whole.num_halved_steps, halved.num_halved_steps) == (0, len(plans))
    for result, other in zip(results, expected, strict=True):
        assert result.token_ids.tolist() == other.token_ids.tolist()
        assert len(result.token_ids) == num_rows
        assert [each is None for each in result.logprobs] == [
            each is None for each in other.logprobs
        ]
        for one, two in zip(result.logprobs, other.logprobs, strict=True):
            if one is not None and two is not None:
                assert one.token_ids == two.token_ids
                assert one.logprobs == pytest.approx(two.logprobs, abs=1e-4)
        assert result.scored_slots.tolist() == other.scored_slots.tolist()
        assert_same_scores(result, other, 1e-4)
    assert sum(len(each.prompt_logprobs) for each in expected) >= num_rows


@pytest.mark.gpu
def test_a_gpu_measures_what_halves_gain(tmp_path: Path) -> None:
    decoder = make_group_of_one(SPEC, torch.device("cuda"))
    runner = make_runner(decoder, is_halved=False)

    times = step_times(runner, decoder, tmp_path / "meeting")

    assert [each.num_tokens for each in times] == [4096, 5000]
    assert min(each.halved_s for each in times) > 0
    assert min(each.whole_s for each in times) > 0
    assert decoder.experts is not None
    assert not decoder.experts.routes.demand_LE.any()
