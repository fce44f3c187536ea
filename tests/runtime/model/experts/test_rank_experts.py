"""A rank's part in a rebalance: its copies land, its routes change in place, its rows count."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from raydix.moe.bank import ExpertBank
from raydix.moe.dispatch.loopback import LOOPBACK
from raydix.moe.placement import Placement, routes
from raydix.runtime.config.policies import QuantizationWay
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.plan import ExpertCopies, PlacementChange, StepPlan
from raydix.runtime.model.checkpoint.checkpoint import LoadedModel, load_model
from raydix.runtime.model.checkpoint.checkpoint_config import read_checkpoint_config
from raydix.runtime.model.decoder.expert_ranks import ExpertRanks
from raydix.runtime.model.experts.rank_experts import RankExperts
from raydix.runtime.model.families.table import Family
from raydix.runtime.tiers.expert_store import ExpertMemory
from tests.checkpoints import make_checkpoint
from tests.quantised_checkpoints import make_quantised

CPU = torch.device("cpu")


class World:
    """Two ranks that have loaded; rank 1 is driven."""

    def __init__(self, folder: Path, memory: ExpertMemory) -> None:
        self.ranks = [_load(folder, rank, memory) for rank in range(2)]
        experts = self.ranks[1].decoder.experts
        assert experts is not None
        self.model = experts
        self.errors: list[BaseException] = []
        self.rank = RankExperts(
            experts,
            self.ranks[1].stored_experts,
            CPU,
            load_interval_steps=3,
            on_error=self.errors.append,
        )

    def bank(self, rank: int, layer: int) -> ExpertBank:
        return [m for m in self.ranks[rank].decoder.modules() if isinstance(m, ExpertBank)][layer]

    def table(self) -> list[list[list[int]]]:
        return self.model.routes.table_LER.tolist()


def _load(folder: Path, rank: int, memory: ExpertMemory) -> LoadedModel:
    """A rank of a model whose weights stay as they are stored."""
    config = read_checkpoint_config(folder)
    if config.quantisation.config is not None:
        config = config.served(QuantizationWay.NATIVE, "cpu", None)
    ranks = ExpertRanks(
        rank=rank,
        size=2,
        connect=lambda shape: LOOPBACK,
        max_tokens=16,
        max_low_latency_tokens=0,
        spare_seats=1,
        memory=memory,
    )
    return load_model(folder, device=CPU, dtype=torch.float32, expert_ranks=ranks, config=config)


@pytest.fixture(params=[None, "fp8 blocks of 16", "gptq"])
def world(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[World]:
    memory = ExpertMemory.create()
    folder = tmp_path / "plain"
    if request.param is None:
        make_checkpoint(folder, Family.QWEN3_MOE, seed=1)
    else:
        folder, _ = make_quantised(tmp_path, Family.QWEN3_MOE, request.param)
    made = World(folder, memory)
    yield made
    made.rank.close()
    memory.close()
    assert not made.errors


def _copies(*rows: tuple[int, int, int, int, int]) -> ExpertCopies:
    columns = map(int32_array, zip(*rows, strict=True))
    names = ("copy_ids", "layers", "experts", "ranks", "seats")
    return ExpertCopies(**dict(zip(names, columns, strict=True)))


def _change(placement: Placement, layers: list[int]) -> PlacementChange:
    demand = np.ones((len(layers), placement.num_experts), np.int32)
    return PlacementChange(
        version=1,
        layers=int32_array(layers),
        experts=int32_array(placement.experts_LP[layers].reshape(-1)),
        demand=int32_array(demand.reshape(-1)),
    )


def test_a_rank_carries_out_its_own_copies_and_acknowledges_each(world: World) -> None:
    spare = world.bank(1, 1).held.index(None)
    others = world.bank(0, 1).held.index(None)

    world.rank.apply(
        StepPlan(step=1, expert_copies=_copies((5, 1, 0, 0, others), (6, 1, 2, 1, spare)))
    )

    world.rank.drain()
    assert world.rank.take_copied().tolist() == [6]
    assert not len(world.rank.take_copied())
    moved, origin = world.bank(1, 1).tensors(spare), world.bank(0, 1).tensors(2)
    assert all(map(torch.equal, moved, origin))
    num_tensors = {torch.float32: 2, torch.float8_e4m3fn: 4, torch.uint8: 6}
    assert len(moved) == num_tensors[moved[0].dtype], "scales and zero points move with numbers"
    assert world.bank(0, 1).held[others] is None


def test_routes_change_in_place_in_the_layers_that_the_plan_names(world: World) -> None:
    before, address = world.table(), world.model.routes.table_LER.data_ptr()
    experts_LP = world.model.placement.experts_LP.copy()
    spare = world.bank(1, 1).held.index(None)
    first = world.model.placement.seats_per_rank
    experts_LP[1, first + spare] = 2
    experts_LP[1, 2] = -1
    placement = Placement(experts_LP, world.model.placement.num_experts, 2)

    world.rank.apply(StepPlan(step=1, placement=_change(placement, [1])))

    expected = routes(placement, 1, np.ones((placement.num_layers, placement.num_experts)))
    assert world.table()[0] == before[0]
    assert world.table()[1] == expected.table_LER[1].tolist() != before[1]
    assert world.model.routes.table_LER.data_ptr() == address


def test_loads_come_every_few_steps_and_begin_anew(world: World) -> None:
    layer, ops = world.model.routes.layer(0), world.ranks[1].decoder.ops
    columns = []
    for step in range(1, 8):
        layer.physical_ids(torch.tensor([[0, 1]]), ops)
        demand = world.rank.after_step()
        if demand is not None:
            columns.append((step, demand.to_column().tolist()[:3]))

    assert columns == [(3, [3, 3, 0]), (6, [3, 3, 0])]


def test_everything_goes_back_to_where_it_was_at_the_start(world: World) -> None:
    weights = {name: p.clone() for name, p in world.ranks[1].decoder.named_parameters()}
    table, held = world.table(), world.bank(1, 0).held
    spare = held.index(None)
    experts_LP = world.model.placement.experts_LP.copy()
    first = world.model.placement.seats_per_rank
    experts_LP[0, [0, first, first + spare]] = [held[0], 0, 1]
    changed = _change(Placement(experts_LP, world.model.placement.num_experts, 2), [0])
    copies = _copies((1, 0, 0, 1, 0), (2, 0, 1, 1, spare))
    world.rank.apply(StepPlan(step=1, expert_copies=copies, placement=changed))
    world.rank.drain()
    assert world.bank(1, 0).held[0] == 0 != held[0]
    world.model.routes.layer(0).physical_ids(torch.tensor([[0, 1]]), world.ranks[1].decoder.ops)

    world.rank.restore()

    # Whoever ordered them is gone.
    assert not len(world.rank.take_copied())
    assert world.table() == table
    assert world.bank(1, 0).held[0] == held[0]
    for name, now in world.ranks[1].decoder.named_parameters():
        own = slice(0, spare) if "experts" in name else slice(None)
        assert torch.equal(now[own], weights[name][own])
    assert not world.model.routes.take_demand().any()
