"""What every implementation has to do, on every kind of ranks."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from raydix.errors import ConfigError
from raydix.runtime.model.collectives.alone import Alone
from raydix.runtime.model.collectives.meeting import meet
from raydix.runtime.model.collectives.protocol import Collectives
from raydix.runtime.model.collectives.symmetric_memory import MAX_SUM_BYTES, SymmetricCollectives
from tests.runtime.model.collectives.ranks import WAIT_S, Lane

GPUS = pytest.mark.multi_gpu
SHAPES = [(1, 48), (3, 50), (32, 5120), (7, 1), (700, 512), (0, 8)]
"""The shapes of parts that are summed: small and large, whole vectors of 16 bytes and not, none at
all.
"""


def lane_id(lane: Lane) -> str:
    kind = "processes" if lane.are_processes else "threads"
    return f"{lane.size}-{kind}-{lane.device}-{str(lane.dtype).removeprefix('torch.')}"


LANES = [
    pytest.param(lane, marks=marks, id=lane_id(lane))
    for lane, marks in [
        (Lane(size=1), ()),
        (Lane(size=2), ()),
        (Lane(size=2, dtype=torch.bfloat16), ()),
        (Lane(size=4), ()),
        (Lane(size=2, are_processes=True), ()),
        (Lane(size=2, device="cuda"), GPUS),
        (Lane(size=2, device="cuda", are_processes=True), GPUS),
        (Lane(size=2, device="cuda", are_processes=True, dtype=torch.bfloat16), GPUS),
    ]
]


def random_part(rank: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * rank + shape[0])
    return torch.randn(shape, generator=generator).to(dtype)


def sum_float32(collectives: Collectives, device: torch.device) -> list[torch.Tensor]:
    return [
        collectives.sum(random_part(collectives.rank, shape, torch.float32).to(device)).cpu()
        for shape in SHAPES
    ]


def sum_bfloat16(collectives: Collectives, device: torch.device) -> list[torch.Tensor]:
    return [
        collectives.sum(random_part(collectives.rank, shape, torch.bfloat16).to(device)).cpu()
        for shape in SHAPES
    ]


@pytest.mark.parametrize("lane", LANES)
def test_sums_are_those_of_all_parts_and_the_same_bits_on_every_rank(
    lane: Lane, tmp_path: Path
) -> None:
    body = sum_float32 if lane.dtype == torch.float32 else sum_bfloat16

    by_rank = lane.run(tmp_path / "meeting", body)

    for index, shape in enumerate(SHAPES):
        parts = [random_part(rank, shape, lane.dtype).double() for rank in range(lane.size)]
        wanted = torch.stack(parts).sum(0)
        found = by_rank[0][index]
        assert (found.shape, found.dtype) == (shape, lane.dtype)
        eps = 2.0 ** (-7 if lane.dtype == torch.bfloat16 else -22)
        torch.testing.assert_close(found.double(), wanted, atol=4 * eps, rtol=eps)
        assert all(torch.equal(found, other[index]) for other in by_rank)


def gather_columns(collectives: Collectives, device: torch.device) -> list[torch.Tensor]:
    gathered = []
    for num_rows, num_columns in [(1, 5), (3, 4), (0, 2)]:
        first = 100 * collectives.rank
        part = torch.arange(num_rows * num_columns, dtype=torch.float32).view(num_rows, num_columns)
        result = collectives.gather((part + first).to(device))
        assert result.is_contiguous()
        gathered.append(result.cpu())
    return gathered


@pytest.mark.parametrize("lane", LANES)
def test_gathered_columns_lie_in_the_order_of_ranks(lane: Lane, tmp_path: Path) -> None:
    by_rank = lane.run(tmp_path / "meeting", gather_columns)

    for index, (num_rows, num_columns) in enumerate([(1, 5), (3, 4), (0, 2)]):
        part = torch.arange(num_rows * num_columns, dtype=torch.float32).view(num_rows, num_columns)
        wanted = torch.cat([part + 100 * rank for rank in range(lane.size)], dim=1)
        assert all(torch.equal(found[index], wanted) for found in by_rank)


def sum_in_a_graph(collectives: Collectives, device: torch.device) -> dict[str, Any]:
    """Sums and a gather, captured once and replayed with three inputs."""
    small = torch.zeros(2, 64, device=device)
    large = torch.zeros(4 * MAX_SUM_BYTES // 4, 4, device=device)
    columns = torch.zeros(2, 8, device=device)

    def step() -> tuple[torch.Tensor, ...]:
        # Twice, because the second sum overwrites what the first one has read.
        first = collectives.sum(small + 0)
        return collectives.sum(2 * first), collectives.sum(large + 0), collectives.gather(columns)

    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        outputs = step()

    found = []
    for value in (1.0, 2.0, 3.0):
        for tensor in (small, large, columns):
            tensor.fill_(value + collectives.rank)
        graph.replay()
        found.append([(float(each.min()), float(each.max())) for each in outputs])
    return {"found": found, "is_symmetric": isinstance(collectives, SymmetricCollectives)}


@pytest.mark.multi_gpu
def test_collectives_replay_from_a_cuda_graph(tmp_path: Path) -> None:
    lane = Lane(size=2, device="cuda", are_processes=True)

    by_rank = lane.run(tmp_path / "meeting", sum_in_a_graph)

    for value, found in zip((1.0, 2.0, 3.0), by_rank[0]["found"], strict=True):
        both = 2 * value + 1
        assert found == [(4 * both, 4 * both), (both, both), (value, value + 1)]
    assert by_rank[0]["found"] == by_rank[1]["found"]
    assert all(each["is_symmetric"] for each in by_rank)


def test_a_lane_of_one_meets_nobody() -> None:
    device = torch.device("cpu")

    assert isinstance(meet(None, 0, 1, device=device, dtype=torch.float32), Alone)
    with pytest.raises(ConfigError, match="rank 1 of a lane of 2 has no file"):
        meet(None, 1, 2, device=device, dtype=torch.float32)


def test_the_end_of_a_rank_ends_the_wait_of_its_peer(tmp_path: Path) -> None:
    has_begun = threading.Event()
    failed: list[Exception] = []

    def be_rank(rank: int) -> None:
        collectives = meet(
            tmp_path / "meeting", rank, 2, device=torch.device("cpu"), dtype=torch.float32
        )
        if rank == 1:
            has_begun.wait(WAIT_S)
            collectives.close()
            return
        has_begun.set()
        try:
            collectives.sum(torch.ones(8))
        except RuntimeError as error:
            failed.append(error)

    with ThreadPoolExecutor(2) as pool:
        for future in [pool.submit(be_rank, rank) for rank in range(2)]:
            future.result(WAIT_S)

    assert len(failed) == 1
