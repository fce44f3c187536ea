"""Models whose experts are divided among ranks: what each keeps, and what they have in common."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
import torch

from raydix.errors import ConfigError
from raydix.moe.dispatch.loopback import LOOPBACK, Loopback
from raydix.moe.dispatch.protocol import DispatchShape
from raydix.moe.dispatch.transport import Transport
from raydix.moe.layer import MoeLayer
from raydix.runtime.config.policies import DispatchBackend
from raydix.runtime.model.checkpoint.checkpoint import LoadedModel, load_model
from raydix.runtime.model.checkpoint.dummy import make_dummy_model
from raydix.runtime.model.decoder.expert_ranks import ExpertRanks
from raydix.runtime.model.experts.dispatchers import connect_dispatcher
from raydix.runtime.model.families.table import Family
from tests.checkpoints import make_checkpoint
from tests.runtime.model.steps.plan_driver import CPU

Load = Callable[..., LoadedModel]
NUM_EXPERTS = 6


def load_rank(
    load: Load, folder: Path, size: int, rank: int, transport: Transport = Transport.AUTO
) -> LoadedModel:
    connect = partial(
        connect_dispatcher,
        DispatchBackend.AUTO,
        folder / f"meeting-{load.__name__}-{size}-{transport}",
        rank,
        device=CPU,
    )
    ranks = ExpertRanks(
        rank=rank,
        size=size,
        connect=connect,
        max_tokens=64,
        max_low_latency_tokens=0,
        spare_seats=1,
        transport=transport,
    )
    return load(folder, device=CPU, dtype=torch.float32, expert_ranks=ranks)


@pytest.mark.parametrize("load", [load_model, make_dummy_model])
def test_ranks_divide_the_experts_and_keep_the_fingerprint(load: Load, tmp_path: Path) -> None:
    make_checkpoint(tmp_path, Family.QWEN3_MOE, seed=1)
    alone = load(tmp_path, device=CPU, dtype=torch.float32)

    for size in (2, 4):
        with ThreadPoolExecutor(size) as pool:
            ranks = list(pool.map(partial(load_rank, load, tmp_path, size), range(size)))

        assert {rank.fingerprint for rank in ranks} == {alone.fingerprint}
        for index, whole in enumerate(alone.decoder.layers):
            assert isinstance(whole.mlp, MoeLayer)
            seen = []
            for rank in ranks:
                layer = rank.decoder.layers[index].mlp
                assert isinstance(layer, MoeLayer)
                for seat, expert in enumerate(layer.experts.held):
                    if expert is not None:
                        seen.append(expert)
                        pairs = zip(
                            layer.experts.tensors(seat),
                            whole.mlp.experts.tensors(expert),
                            strict=True,
                        )
                        assert all(torch.equal(own, other) for own, other in pairs)
            assert sorted(seen) == list(range(NUM_EXPERTS))


@pytest.mark.parametrize("load", [load_model, make_dummy_model])
def test_pages_of_rounded_rows_are_others(load: Load, tmp_path: Path) -> None:
    make_checkpoint(tmp_path, Family.QWEN3_MOE, seed=1)

    def fingerprints(size: int, transport: Transport) -> set[bytes]:
        with ThreadPoolExecutor(size) as pool:
            ranks = pool.map(
                lambda rank: load_rank(load, tmp_path, size, rank, transport), range(size)
            )
            return {rank.fingerprint for rank in ranks}

    rounded = fingerprints(2, Transport.FP8)

    assert len(rounded) == 1
    assert rounded == fingerprints(4, Transport.FP8)
    assert rounded != fingerprints(2, Transport.AUTO)


def test_a_model_without_experts_cannot_divide_them(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, Family.QWEN3, seed=1)

    with pytest.raises(ConfigError, match=r"parallel\.ep is 2, but the model has no experts"):
        load_rank(load_model, tmp_path, 2, 0)


def test_dispatchers_are_made_for_the_seats_of_a_rank(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, Family.QWEN3_MOE, seed=1)
    shapes: list[DispatchShape] = []

    def connect(shape: DispatchShape) -> Loopback:
        shapes.append(shape)
        return LOOPBACK

    ranks = ExpertRanks(
        rank=1,
        size=4,
        connect=connect,
        max_tokens=64,
        max_low_latency_tokens=8,
        redundant_per_rank=1,
        spare_seats=2,
    )
    model = make_dummy_model(tmp_path, device=CPU, dtype=torch.float32, expert_ranks=ranks)

    # Six experts on four ranks: two each at most, a redundant one, two spare seats.
    assert [shape.seats_per_rank for shape in shapes] == [5]
    assert (shapes[0].max_tokens, shapes[0].max_low_latency_tokens) == (64, 8)
    assert model.decoder.experts is not None
    assert set(model.decoder.experts.by_layer) == {0, 1, 2}


@pytest.mark.parametrize(("redundant", "spare"), [(5, 0), (0, 5)])
def test_seats_that_no_expert_could_use_are_refused(
    tmp_path: Path, redundant: int, spare: int
) -> None:
    make_checkpoint(tmp_path, Family.QWEN3_MOE, seed=1)
    [name] = [f"{n}_per_rank" for n, s in (("redundant", redundant), ("spare", spare)) if s]

    def load(redundant: int, spare: int) -> None:
        ranks = ExpertRanks(
            rank=0,
            size=3,
            connect=lambda shape: LOOPBACK,
            max_tokens=8,
            max_low_latency_tokens=0,
            redundant_per_rank=redundant,
            spare_seats=spare,
        )
        make_dummy_model(tmp_path, device=CPU, dtype=torch.float32, expert_ranks=ranks)

    # Six experts on three ranks: two each, so that four others are left.
    load(4, 4)
    with pytest.raises(ConfigError, match=rf"experts\.{name} is 5; expected at most 4"):
        load(redundant, spare)


def test_a_library_that_is_not_here_is_refused_by_every_rank(tmp_path: Path) -> None:
    shape = DispatchShape(
        num_ranks=2,
        seats_per_rank=4,
        hidden_size=2048,
        experts_per_token=2,
        max_tokens=8,
        max_low_latency_tokens=0,
        dtype=torch.bfloat16,
    )

    def refuse(rank: int) -> None:
        with pytest.raises(ConfigError, match="deepep is unavailable: "):
            connect_dispatcher(
                DispatchBackend.DEEPEP, tmp_path / "meeting", rank, shape, device=CPU
            )

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(refuse, range(2)))
