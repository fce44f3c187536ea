"""Ranks fill the node's store while they load, and later ones fill their seats from there."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from raydix.errors import CheckpointError
from raydix.ids import LogicalExpertId
from raydix.moe.bank import ExpertBank
from raydix.moe.dispatch.loopback import LOOPBACK
from raydix.runtime.model.checkpoint.checkpoint import LoadedModel, load_model
from raydix.runtime.model.checkpoint.dummy import make_dummy_model
from raydix.runtime.model.decoder.expert_ranks import ExpertRanks
from raydix.runtime.model.families.table import Family
from raydix.runtime.tiers.expert_store import ExpertMemory
from tests.checkpoint_damage import zero_experts
from tests.checkpoints import make_checkpoint

CPU = torch.device("cpu")
FAMILIES = [Family.QWEN3_MOE, Family.MIXTRAL, Family.DEEPSEEK_V3, Family.GPT_OSS]


@pytest.fixture
def memory() -> Iterator[ExpertMemory]:
    made = ExpertMemory.create()
    yield made
    made.close()


def _load(folder: Path, rank: int, memory: ExpertMemory | None, load=load_model) -> LoadedModel:
    ranks = ExpertRanks(
        rank=rank,
        size=2,
        connect=lambda shape: LOOPBACK,
        max_tokens=16,
        max_low_latency_tokens=0,
        spare_seats=1,
        memory=memory,
    )
    return load(folder, device=CPU, dtype=torch.float32, expert_ranks=ranks)


def _weights(loaded: LoadedModel) -> dict[str, torch.Tensor]:
    return {name: part.target.clone() for name, part in loaded.decoder.weights().items()}


def _same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(
        torch.equal(left[name], right[name]) for name in left
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_a_rank_that_is_made_again_takes_experts_from_the_store(
    tmp_path: Path, memory: ExpertMemory, family: Family
) -> None:
    make_checkpoint(tmp_path, family, seed=1)
    first = [_load(tmp_path, rank, memory) for rank in range(2)]
    plain = _load(tmp_path, 1, None)
    assert _same(_weights(first[1]), _weights(plain))

    zero_experts(tmp_path)
    again = _load(tmp_path, 1, memory)

    assert _same(_weights(again), _weights(plain))
    assert again.fingerprint == first[0].fingerprint == plain.fingerprint
    # And the checkpoint alone would have given something else.
    assert not _same(_weights(_load(tmp_path, 1, None)), _weights(plain))


def test_until_every_rank_has_loaded_the_checkpoint_is_read(
    tmp_path: Path, memory: ExpertMemory
) -> None:
    make_checkpoint(tmp_path, Family.QWEN3_MOE, seed=1)
    first = _load(tmp_path, 0, memory)
    assert first.stored_experts is not None
    assert first.stored_experts.weight_fingerprint is None

    again = _load(tmp_path, 0, memory)

    assert _same(_weights(again), _weights(first))


def test_random_experts_are_not_drawn_again(tmp_path: Path, memory: ExpertMemory) -> None:
    make_checkpoint(tmp_path, Family.QWEN3_MOE, seed=1)
    first = [_load(tmp_path, rank, memory, make_dummy_model) for rank in range(2)]
    stored = first[0].stored_experts
    assert stored is not None
    # Something that drawing would not give, as if it were expert 4, which is on rank 1.
    marked_E = stored._store.expert(0, 4)
    marked_E[:] = stored._store.expert(0, 0)

    again = _load(tmp_path, 1, memory, make_dummy_model)

    gate = "layers.0.mlp.experts.{}.gate.weight"
    assert torch.equal(_weights(again)[gate.format(4)], _weights(first[0])[gate.format(0)])
    assert again.fingerprint == first[1].fingerprint


def test_a_checkpoint_that_was_replaced_is_refused(tmp_path: Path, memory: ExpertMemory) -> None:
    make_checkpoint(tmp_path, Family.QWEN3_MOE, seed=1)
    _load(tmp_path, 0, memory)
    make_checkpoint(tmp_path, Family.QWEN3_MOE, seed=2)
    with pytest.raises(CheckpointError, match="has changed"):
        _load(tmp_path, 1, memory)


def test_any_expert_can_be_brought_into_a_spare_seat(tmp_path: Path, memory: ExpertMemory) -> None:
    make_checkpoint(tmp_path, Family.GPT_OSS, seed=1)
    ranks = [_load(tmp_path, rank, memory) for rank in range(2)]
    banks = [
        [each for each in rank.decoder.modules() if isinstance(each, ExpertBank)] for rank in ranks
    ]
    theirs = LogicalExpertId(banks[1][1].held[1] or 0)
    spare = banks[0][1].held.index(None)
    stored = ranks[0].stored_experts
    assert stored is not None

    stored.fill_seat(1, spare, theirs)

    moved, origin = banks[0][1].tensors(spare), banks[1][1].tensors(1)
    assert len(moved) == 4
    assert all(map(torch.equal, moved, origin))
    assert banks[0][1].held[spare] == theirs
