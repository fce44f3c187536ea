from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from raydix.kernels.pages.page_codec import Codec, encoded_head_bytes
from raydix.kernels.pages.page_copy import (
    CopyDirection,
    CopySegment,
    Launch,
    PagePairs,
    pack_copies,
)
from raydix.kernels.pages.quantised_copy import copy_quantised_pages
from raydix.kernels.reference.page_codec import decode_pages, encode_pages

HEADER_BYTES = 64
NUM_LAYERS = 3
PAIRS = {3: 6, 1: 0, 4: 5}
"""Pages and their host pages."""


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(params=[Codec.INT8, Codec.FP8])
def codec(request: pytest.FixtureRequest) -> Codec:
    return Codec(request.param)


@dataclass(frozen=True)
class Shape:
    """The shape of a rank's pages; `num_ranks` such runs of heads make a canonical layer."""

    page_size: int
    head_dim: int
    heads: int = 2
    num_ranks: int = 1
    rank: int = 0


SHAPES = [
    Shape(page_size=4, head_dim=12),
    Shape(page_size=16, head_dim=64, heads=1, num_ranks=4, rank=2),
    Shape(page_size=16, head_dim=128, heads=3),
    Shape(page_size=64, head_dim=64, heads=1, num_ranks=2, rank=1),
    Shape(page_size=64, head_dim=128, heads=2),
    Shape(page_size=64, head_dim=80, heads=1),
]


def skip_if_rounding_differs(device: torch.device, codec: Codec) -> None:
    if device.type == "cpu" and codec is Codec.FP8:
        pytest.skip("Triton's interpreter cuts small numbers to fp8 where a GPU rounds")


class Tiers:
    """A pool with this rank's heads, and an arena with the canonical pages of all ranks."""

    def __init__(
        self, shape: Shape, codec: Codec, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.codec = codec
        size = (7, NUM_LAYERS, shape.heads, 2, shape.page_size, shape.head_dim)
        magnitudes = torch.exp2(torch.randint(-20, 20, (*size[:4], 1, 1)).float())
        self.pool = (torch.randn(size) * magnitudes).to(dtype).to(device)
        self.layer_bytes = shape.heads * encoded_head_bytes(shape.page_size * shape.head_dim)
        self.canonical_layer_bytes = self.layer_bytes * shape.num_ranks
        self.rank_offset_bytes = self.layer_bytes * shape.rank
        self.page_bytes = HEADER_BYTES + -(-NUM_LAYERS * self.canonical_layer_bytes // 64) * 64
        self.arena = torch.randint(0, 256, (7 * self.page_bytes,), dtype=torch.uint8)
        if device.type == "cuda":
            self.arena = self.arena.pin_memory()

    def segment(
        self, first_layer: int, num_layers: int, pairs: dict[int, int] = PAIRS
    ) -> CopySegment:
        return CopySegment(
            pool=self.pool,
            pages=PagePairs(
                page_ids=np.array(list(pairs), dtype=np.int32),
                arena_offsets=np.array(list(pairs.values()), dtype=np.int64) * self.page_bytes
                + HEADER_BYTES,
            ),
            first_layer=first_layer,
            num_layers=num_layers,
            canonical_layer_bytes=self.canonical_layer_bytes,
            rank_offset_bytes=self.rank_offset_bytes,
            codec=self.codec,
        )

    def host_layer(self, arena: Tensor, host_page: int, layer: int) -> Tensor:
        """[1, bytes], a view."""
        start = (
            host_page * self.page_bytes
            + HEADER_BYTES
            + layer * self.canonical_layer_bytes
            + self.rank_offset_bytes
        )
        return arena[None, start : start + self.layer_bytes]

    def fill_host_pages(self) -> None:
        """Fill the host's pages with some that were encoded from something."""
        for host_page in PAIRS.values():
            for layer in range(NUM_LAYERS):
                other = torch.randn_like(self.pool[:1, layer].float()).to(self.pool.dtype)
                self.host_layer(self.arena, host_page, layer)[:] = encode_pages(
                    other, self.codec
                ).cpu()

    def copy(self, launches: list[list[CopySegment]], direction: CopyDirection) -> None:
        packed = pack_copies(launches)
        table = torch.from_numpy(packed.words).to(self.pool.device)
        for launch in packed.launches:
            copy_quantised_pages(table, launch, self.arena, direction, self.pool, self.codec)
        if self.pool.is_cuda:
            torch.cuda.synchronize()


def is_same(left: Tensor, right: Tensor) -> bool:
    """Bit by bit, on one device."""
    return torch.equal(left.cpu().view(torch.uint8), right.cpu().view(torch.uint8))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_pages_are_encoded_as_the_twin_does_and_nothing_else_changes(
    device: torch.device, dtype: torch.dtype, codec: Codec, shape: Shape
) -> None:
    skip_if_rounding_differs(device, codec)
    tiers = Tiers(shape, codec, dtype, device)
    tiers.pool[3, 1, 0, 1] = 0.0
    pool, expected = tiers.pool.clone(), tiers.arena.clone()
    for page, host_page in PAIRS.items():
        for layer in (1, 2):
            tiers.host_layer(expected, host_page, layer)[:] = encode_pages(
                pool[page : page + 1, layer].cpu(), codec
            )

    tiers.copy([[tiers.segment(1, 2)]], CopyDirection.TO_ARENA)

    assert torch.equal(tiers.arena, expected)
    assert is_same(tiers.pool, pool)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_pages_are_restored_as_the_twin_does_and_nothing_else_changes(
    device: torch.device, dtype: torch.dtype, codec: Codec, shape: Shape
) -> None:
    tiers = Tiers(shape, codec, dtype, device)
    tiers.fill_host_pages()
    arena, expected = tiers.arena.clone(), tiers.pool.cpu().clone()
    for page, host_page in PAIRS.items():
        for layer in (0, 1):
            encoded = tiers.host_layer(arena, host_page, layer)
            expected[page, layer] = decode_pages(encoded, codec, expected.shape[2:], dtype)[0]

    tiers.copy([[tiers.segment(0, 2)]], CopyDirection.TO_POOL)

    assert is_same(tiers.pool, expected)
    assert torch.equal(tiers.arena, arena)


def test_several_launches_share_a_table(device: torch.device, codec: Codec) -> None:
    skip_if_rounding_differs(device, codec)
    tiers = Tiers(SHAPES[0], codec, torch.float32, device)
    expected = tiers.arena.clone()
    for page, host_page in {**PAIRS, 6: 2}.items():
        for layer in range(NUM_LAYERS):
            if page != 6 or layer == 2:
                encoded = encode_pages(tiers.pool[page : page + 1, layer].cpu(), codec)
                tiers.host_layer(expected, host_page, layer)[:] = encoded

    tiers.copy(
        [[tiers.segment(0, 1)], [tiers.segment(1, 2), tiers.segment(2, 1, {6: 2})]],
        CopyDirection.TO_ARENA,
    )

    assert torch.equal(tiers.arena, expected)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 2.0**-101, 3e38])
def test_extreme_values_are_encoded_as_the_twin_does(
    device: torch.device, codec: Codec, value: float
) -> None:
    skip_if_rounding_differs(device, codec)
    tiers = Tiers(SHAPES[2], codec, torch.float32, device)
    tiers.pool[3, :, 1, 0] = 0.0
    tiers.pool[3, :, 1, 0, 9, 100] = value
    expected = encode_pages(tiers.pool[3].cpu(), codec)

    tiers.copy([[tiers.segment(0, NUM_LAYERS)]], CopyDirection.TO_ARENA)
    tiers.copy([[tiers.segment(0, NUM_LAYERS, {2: PAIRS[3]})]], CopyDirection.TO_POOL)

    for layer in range(NUM_LAYERS):
        assert torch.equal(tiers.host_layer(tiers.arena, PAIRS[3], layer)[0], expected[layer])
    restored = decode_pages(expected, codec, tiers.pool.shape[2:], torch.float32)
    assert torch.equal(tiers.pool[2].cpu().nan_to_num(nan=1234.5), restored.nan_to_num(nan=1234.5))


def test_segments_outside_an_encoded_layer_are_refused() -> None:
    tiers = Tiers(SHAPES[0], Codec.INT8, torch.float32, torch.device("cpu"))
    segment = tiers.segment(0, 1)

    with pytest.raises(ValueError, match="outside a canonical layer"):
        pack_copies([[replace(segment, canonical_layer_bytes=tiers.layer_bytes - 16)]])
    with pytest.raises(ValueError, match="not aligned"):
        pack_copies(
            [[replace(segment, rank_offset_bytes=8, canonical_layer_bytes=tiers.layer_bytes + 8)]]
        )


def test_impossible_launches_are_refused() -> None:
    launch = Launch(first_segment=0, num_segments=1, smallest_piece_bytes=512)
    table, arena = torch.zeros(8, dtype=torch.int64), torch.zeros(64, dtype=torch.uint8)
    pool, way = torch.zeros(2, 1, 1, 2, 4, 12), CopyDirection.TO_POOL

    with pytest.raises(ValueError, match="The table"):
        copy_quantised_pages(table.int(), launch, arena, way, pool, Codec.INT8)
    with pytest.raises(ValueError, match="The arena"):
        copy_quantised_pages(table, launch, arena.to(torch.int8), way, pool, Codec.INT8)
    with pytest.raises(ValueError, match="cannot be held as none"):
        copy_quantised_pages(table, launch, arena, way, pool, Codec.NONE)
    with pytest.raises(ValueError, match=r"Pages of torch\.float64"):
        copy_quantised_pages(table, launch, arena, way, pool.double(), Codec.INT8)
    with pytest.raises(ValueError, match="A launch of 0 segments"):
        copy_quantised_pages(table, replace(launch, num_segments=0), arena, way, pool, Codec.INT8)
