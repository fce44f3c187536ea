from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from raydix.kernels.pages.page_copy import (
    CopyDirection,
    CopySegment,
    Launch,
    PagePairs,
    choose_num_ctas,
    copy_pages,
    pack_copies,
)

HEADER_BYTES = 64
NUM_LAYERS, PAGE, DIM = 3, 4, 16


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


class Tiers:
    """A rank's pool, and an arena whose canonical pages hold the heads of `num_ranks` ranks."""

    def __init__(self, device: torch.device, *, heads: int, num_ranks: int, rank: int) -> None:
        self.pool = torch.randn(9, NUM_LAYERS, heads, 2, PAGE, DIM, device=device)
        self.layer_bytes = self.pool[0, 0].numel() * 4
        self.canonical_layer_bytes = self.layer_bytes * num_ranks
        self.rank_offset_bytes = self.layer_bytes * rank
        self.page_bytes = HEADER_BYTES + NUM_LAYERS * self.canonical_layer_bytes
        self.arena = torch.randint(0, 256, (12 * self.page_bytes,), dtype=torch.uint8)
        if device.type == "cuda":
            self.arena = self.arena.pin_memory()

    def segment(
        self, page_ids: list[int], host_pages: list[int], first_layer: int, num_layers: int
    ) -> CopySegment:
        return CopySegment(
            pool=self.pool,
            pages=PagePairs(
                page_ids=np.array(page_ids, dtype=np.int32),
                arena_offsets=np.array(host_pages, dtype=np.int64) * self.page_bytes + HEADER_BYTES,
            ),
            first_layer=first_layer,
            num_layers=num_layers,
            canonical_layer_bytes=self.canonical_layer_bytes,
            rank_offset_bytes=self.rank_offset_bytes,
        )

    def host_layer(self, host_page: int, layer: int) -> Tensor:
        start = (
            host_page * self.page_bytes
            + HEADER_BYTES
            + layer * self.canonical_layer_bytes
            + self.rank_offset_bytes
        )
        return (
            self.arena[start : start + self.layer_bytes]
            .view(torch.float32)
            .view(self.pool.shape[2:])
        )


def is_same(left: Tensor, right: Tensor) -> bool:
    """Bit by bit: random bytes may be NaN."""
    return torch.equal(left.cpu().view(torch.int32), right.cpu().view(torch.int32))


def copy(tiers: Tiers, launches: list[list[CopySegment]], direction: CopyDirection) -> None:
    packed = pack_copies(launches)
    table = torch.from_numpy(packed.words).to(tiers.pool.device)
    for launch in packed.launches:
        copy_pages(table, launch, tiers.arena, direction)
    if tiers.pool.is_cuda:
        torch.cuda.synchronize()


@pytest.mark.parametrize(
    ("heads", "num_ranks", "rank"), [(2, 1, 0), (1, 4, 2), (9, 1, 0), (40, 2, 1)]
)
@pytest.mark.parametrize("direction", CopyDirection)
def test_a_run_of_layers_moves_and_nothing_else(
    device: torch.device, heads: int, num_ranks: int, rank: int, direction: CopyDirection
) -> None:
    tiers = Tiers(device, heads=heads, num_ranks=num_ranks, rank=rank)
    pool, arena = tiers.pool.cpu().clone(), tiers.arena.clone()
    pairs = {3: 11, 1: 0, 8: 5}
    expected = Tiers(torch.device("cpu"), heads=heads, num_ranks=num_ranks, rank=rank)
    expected.pool, expected.arena = pool, arena
    for page, host_page in pairs.items():
        for layer in (1, 2):
            if direction is CopyDirection.TO_POOL:
                pool[page, layer] = expected.host_layer(host_page, layer)
            else:
                expected.host_layer(host_page, layer)[:] = pool[page, layer]

    copy(tiers, [[tiers.segment(list(pairs), list(pairs.values()), 1, 2)]], direction)

    assert is_same(tiers.pool, pool)
    assert torch.equal(tiers.arena, arena)


def test_one_table_serves_several_launches_of_several_groups(device: torch.device) -> None:
    tiers, others = (Tiers(device, heads=heads, num_ranks=1, rank=0) for heads in (2, 3))
    others.arena = tiers.arena = torch.cat((tiers.arena, others.arena))
    if device.type == "cuda":
        others.arena = tiers.arena = tiers.arena.pin_memory()
    first, other = tiers.segment([2, 4], [1, 0], 0, 1), others.segment([7], [9], 0, 3)
    rest = CopySegment(
        pool=first.pool,
        pages=first.pages,
        first_layer=1,
        num_layers=2,
        canonical_layer_bytes=first.canonical_layer_bytes,
        rank_offset_bytes=0,
    )

    copy(tiers, [[first, other], [rest]], CopyDirection.TO_POOL)

    for page, host_page in ((2, 1), (4, 0)):
        for layer in range(NUM_LAYERS):
            assert is_same(tiers.pool[page, layer], tiers.host_layer(host_page, layer))
    for layer in range(NUM_LAYERS):
        assert is_same(others.pool[7, layer], others.host_layer(9, layer))


def test_equal_page_lists_are_stored_once() -> None:
    tiers = Tiers(torch.device("cpu"), heads=1, num_ranks=1, rank=0)
    segment = tiers.segment([1, 2, 3], [4, 5, 6], 0, 1)

    one = pack_copies([[segment]])
    two = pack_copies([[segment], [segment]])

    assert len(two.words) - len(one.words) == len(one.words) - 2 * 3
    assert [launch.first_segment for launch in two.launches] == [0, 1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"first_layer": 2, "num_layers": 2}, "Layers 2 to 4"),
        ({"num_layers": 0}, "Layers 0 to 0"),
        ({"rank_offset_bytes": 16}, "outside a canonical layer"),
        ({"canonical_layer_bytes": 520, "rank_offset_bytes": 8}, "not aligned"),
        (
            {"pages": PagePairs(page_ids=np.zeros(1, np.int32), arena_offsets=np.array([8]))},
            "not aligned",
        ),
        (
            {
                "pages": PagePairs(
                    page_ids=np.zeros(0, np.int32), arena_offsets=np.zeros(0, np.int64)
                )
            },
            "0 page ids",
        ),
        ({"pool": torch.zeros(2, 8, 3).transpose(1, 2)}, "not contiguous"),
    ],
)
def test_impossible_segments_are_refused(change: dict[str, object], message: str) -> None:
    fields: dict[str, object] = {
        "pool": torch.zeros(4, NUM_LAYERS, 1, 2, PAGE, DIM),
        "pages": PagePairs(page_ids=np.zeros(1, np.int32), arena_offsets=np.zeros(1, np.int64)),
        "first_layer": 0,
        "num_layers": 1,
        "canonical_layer_bytes": 512,
        "rank_offset_bytes": 0,
    }
    segment = CopySegment(**{**fields, **change})  # type: ignore[arg-type]

    with pytest.raises(ValueError, match=message):
        pack_copies([[segment]])


def test_impossible_launches_are_refused() -> None:
    launch = Launch(first_segment=0, num_segments=1, smallest_piece_bytes=512)
    table, arena = torch.zeros(8, dtype=torch.int64), torch.zeros(64, dtype=torch.uint8)

    with pytest.raises(ValueError, match="The table"):
        copy_pages(table.int(), launch, arena, CopyDirection.TO_POOL)
    with pytest.raises(ValueError, match="The arena"):
        copy_pages(table, launch, arena.to(torch.int8), CopyDirection.TO_POOL)
    with pytest.raises(ValueError, match="A launch of 0 segments"):
        copy_pages(table, replace(launch, num_segments=0), arena, CopyDirection.TO_POOL)


@pytest.mark.parametrize("direction", CopyDirection)
@pytest.mark.parametrize("piece_bytes", [512, 8 << 10, 64 << 10, 4 << 20])
def test_a_launch_takes_few_multiprocessors(direction: CopyDirection, piece_bytes: int) -> None:
    assert 1 <= choose_num_ctas(direction, piece_bytes) <= 32


@pytest.mark.gpu
@pytest.mark.parametrize("direction", CopyDirection)
def test_the_copy_engine_moves_the_same_bytes(direction: CopyDirection) -> None:
    from raydix.kernels.pages.copy_engine import CopyEngine, has_copy_engine

    if not has_copy_engine():
        pytest.skip("this PyTorch has no CUDA 13")
    by_kernel, by_engine = (
        Tiers(torch.device("cuda"), heads=1, num_ranks=4, rank=2) for _ in range(2)
    )
    by_engine.pool.copy_(by_kernel.pool)
    by_engine.arena.copy_(by_kernel.arena)
    copy(by_kernel, [[by_kernel.segment([3, 1], [7, 2], 1, 2)]], direction)

    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        CopyEngine().copy_pages(
            [by_engine.segment([3, 1], [7, 2], 1, 2)], by_engine.arena, direction
        )
    torch.cuda.synchronize()

    assert is_same(by_engine.pool, by_kernel.pool)
    assert torch.equal(by_engine.arena, by_kernel.arena)
