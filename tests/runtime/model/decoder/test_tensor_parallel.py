"""Models cut among ranks compute what one rank does."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from raydix.errors import ConfigError
from raydix.kernels.weights.rank_share import RankShare
from raydix.kernels.weights.weight_part import WeightPart, cut, cut_heads, first_rank_only
from raydix.runtime.model.checkpoint.checkpoint import LoadedModel, load_model
from raydix.runtime.model.checkpoint.dummy import make_dummy_model
from raydix.runtime.model.collectives.meeting import meet
from raydix.runtime.model.families.table import Family
from tests.checkpoints import LOGITS_TOLERANCE, make_checkpoint, num_decided_tokens
from tests.runtime.model.steps.plan_driver import CPU, PlanDriver

NUM_TOKENS = 6
WAIT_S = 120
_HEADS = {"num_attention_heads": 12}
"""Divisible by 4; with 2 KV heads, two of 4 ranks keep the same one."""
_LATENT = {**_HEADS, "num_key_value_heads": 12}
_WITH_LATENTS = (Family.DEEPSEEK_V2, Family.DEEPSEEK_V3, Family.KIMI_K2, Family.KIMI_K25)
PER_FAMILY = dict.fromkeys(_WITH_LATENTS, _LATENT)
CASES: list[tuple[str, Family, dict[str, Any]]] = [
    *((family.name.lower(), family, PER_FAMILY.get(family, _HEADS)) for family in Family),
    ("kv_heads_on_their_own_ranks", Family.QWEN3, {**_HEADS, "num_key_value_heads": 4}),
    ("one_kv_head", Family.LLAMA, {**_HEADS, "num_key_value_heads": 1}),
    (
        "biased_with_odd_sizes",
        Family.LLAMA,
        {**_HEADS, "attention_bias": True, "mlp_bias": True, "intermediate_size": 57},
    ),
    ("tied_with_an_odd_vocabulary", Family.QWEN2, {**_HEADS, "tie_word_embeddings": True}),
    ("last_rank_without_tokens", Family.QWEN3, {**_HEADS, "vocab_size": 5}),
    ("odd_experts", Family.MIXTRAL, {**_HEADS, "intermediate_size": 23}),
    (
        "biased_latents",
        Family.DEEPSEEK_V3,
        {**_LATENT, "attention_bias": True, "q_lora_rank": None},
    ),
]


def on_ranks(
    folder: Path, size: int, prompts: list[list[int]]
) -> list[tuple[list[list[int]], torch.Tensor]]:
    """Tokens and logits [step, prompt, V] of each rank of a lane, whose ranks are threads."""

    def be_rank(rank: int) -> tuple[list[list[int]], torch.Tensor]:
        collectives = meet(folder / f"meeting{size}", rank, size, device=CPU, dtype=torch.float32)
        model = load_model(folder, device=CPU, dtype=torch.float32, collectives=collectives)
        driver = PlanDriver(model)
        driver.record_logits()
        requests = [driver.add(slot, prompt) for slot, prompt in enumerate(prompts)]
        return driver.generate(requests, NUM_TOKENS), torch.stack(driver.logits)

    with ThreadPoolExecutor(size) as pool:
        futures = [pool.submit(be_rank, rank) for rank in range(size)]
        return [future.result(WAIT_S) for future in futures]


@pytest.mark.part
@pytest.mark.parametrize(("name", "family", "overrides"), CASES, ids=[case[0] for case in CASES])
def test_ranks_compute_the_logits_of_one(
    name: str, family: Family, overrides: dict[str, Any], tmp_path: Path
) -> None:
    make_checkpoint(tmp_path, family, seed=len(name), **overrides)
    rng = np.random.default_rng(len(name))
    num_known = overrides.get("vocab_size", 199)
    prompts = [rng.integers(0, num_known, length).tolist() for length in (5, 33)]
    [(tokens, logits)] = on_ranks(tmp_path, 1, prompts)

    for size in (2, 4):
        ranks = on_ranks(tmp_path, size, prompts)

        for row in range(len(prompts)):
            decided = num_decided_tokens(logits[:, row])
            assert ranks[0][0][row][:decided] == tokens[row][:decided]
            difference = (ranks[0][1] - logits)[: decided + 1, row].abs().max()
            assert difference <= LOGITS_TOLERANCE * logits.abs().max()
        # Not even a bit may differ, because each rank samples for itself.
        assert all(torch.equal(rank[1], ranks[0][1]) for rank in ranks)
        assert all(rank[0] == ranks[0][0] for rank in ranks)


@pytest.mark.parametrize(
    ("overrides", "size", "message"),
    [
        ({"num_attention_heads": 7, "num_key_value_heads": 1}, 2, "7 query heads"),
        ({"num_attention_heads": 12, "num_key_value_heads": 3}, 2, "3 kv heads"),
    ],
)
def test_heads_that_cannot_be_divided_are_refused(
    overrides: dict[str, int], size: int, message: str, tmp_path: Path
) -> None:
    make_checkpoint(tmp_path, Family.QWEN3, seed=1, **overrides)

    with pytest.raises(ConfigError, match=rf"parallel\.tp is {size}; {message}"):
        load_model(tmp_path, device=CPU, dtype=torch.float32, collectives=Unmet(0, size))


class Unmet:
    """The collectives of a rank whose model is only loaded."""

    is_capturable = False

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size

    def sum(self, part: torch.Tensor) -> torch.Tensor:
        raise AssertionError("there are no peers")

    def gather(self, part_RV: torch.Tensor) -> torch.Tensor:
        raise AssertionError("there are no peers")

    def close(self) -> None:
        """Nothing is open."""


def load_ranks(load: Any, folder: Path, size: int) -> list[LoadedModel]:
    return [
        load(folder, device=CPU, dtype=torch.float32, collectives=Unmet(rank, size))
        for rank in range(size)
    ]


@pytest.mark.part
@pytest.mark.parametrize("load", [load_model, make_dummy_model])
@pytest.mark.parametrize("family", list(Family))
def test_the_fingerprint_is_that_of_the_whole_and_parts_add_up(
    family: Family, load: Any, tmp_path: Path
) -> None:
    make_checkpoint(tmp_path, family, seed=3, **PER_FAMILY.get(family, _HEADS))
    [whole] = load_ranks(load, tmp_path, 1)

    for size in (2, 4):
        ranks = load_ranks(load, tmp_path, size)

        assert {rank.fingerprint for rank in ranks} == {whole.fingerprint}
        for name, part in whole.decoder.weights().items():
            parts = [rank.decoder.weights()[name] for rank in ranks]
            assert torch.equal(put_together(parts), part.target), name


def put_together(parts: list[WeightPart]) -> torch.Tensor:
    """The whole of which these are parts; several may be the same part."""
    whole = torch.full(parts[0].whole_shape, torch.nan)
    for part in parts:
        assert part.whole_shape == whole.shape
        start = min(part.start, whole.shape[part.dim])
        length = min(part.target.shape[part.dim], whole.shape[part.dim] - start)
        whole.narrow(part.dim, start, length).copy_(part.target.narrow(part.dim, 0, length))
        rest = part.target.narrow(part.dim, length, part.target.shape[part.dim] - length)
        assert not rest.any()
    return whole


def test_parts_past_the_end_are_zero() -> None:
    whole = torch.arange(1.0, 8.0)[:, None].expand(7, 2)
    targets = [torch.full((2, 2), torch.nan) for _ in range(5)]

    for rank, target in enumerate(targets):
        cut(target, RankShare(rank, 5), 7, dim=0).fill(whole)

    assert torch.cat(targets)[:, 0].tolist() == [1, 2, 3, 4, 5, 6, 7, 0, 0, 0]


def test_columns_are_cut_where_a_sum_over_ranks_makes_them_whole() -> None:
    whole = torch.arange(12.0).view(2, 6)
    target = torch.full((2, 3), torch.nan)

    cut(target, RankShare(1, 2), 6, dim=1).fill(whole)

    assert target.tolist() == [[3, 4, 5], [9, 10, 11]]


def test_ranks_with_one_head_keep_the_same_rows() -> None:
    whole = torch.arange(8.0)
    kept = []
    for rank in range(4):
        target = torch.empty(4)
        cut_heads(target, RankShare(rank, 4).kv_heads(2), 2).fill(whole)
        kept.append(target.tolist())

    assert kept == [[0, 1, 2, 3]] * 2 + [[4, 5, 6, 7]] * 2


def test_what_is_added_once_is_zero_on_other_ranks() -> None:
    whole = torch.ones(3)
    kept = []
    for rank in range(2):
        target = torch.full((3,), torch.nan)
        first_rank_only(target, RankShare(rank, 2)).fill(whole)
        kept.append(target.tolist())

    assert kept == [[1, 1, 1], [0, 0, 0]]
