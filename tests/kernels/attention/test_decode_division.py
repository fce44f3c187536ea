"""The kernel's own Python, run on the CPU without arithmetic: who asks for what, and uses it."""

import random
from types import FunctionType, SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from raydix.kernels.attention import decode_hopper, hopper_blocks
from raydix.kernels.kv_cache.fp8 import FP8

KEYS, ROWS, DIM, HEADS, GROUP, MIN_BLOCKS = decode_hopper.BLOCK_KEYS, 64, 128, 2, 4, 2
TOKEN = HEADS * GROUP
PARTS = 1 << 30
"""Where parts are stored, far behind the output."""


class Value(Tensor):
    """A tensor that is never changed, as values of a kernel are."""

    def __iadd__(self, other: Any) -> Any:
        return self + other


class Pointer(NamedTuple):
    column: Tensor
    index: Any = 0

    def __add__(self, offset: Any) -> "Pointer":  # type: ignore[override]
        return Pointer(self.column, self.index + offset)


class Cell:
    """Room for a block (row in the block tables, first key), or the barrier of such room."""

    def __init__(self) -> None:
        self.block: tuple[int, int] | None = None
        self.num_asked = 0

    def permute(self, order: object) -> "Cell":
        return self


class Programs:
    """What the programs of a launch have done, one after the other."""

    def __init__(self) -> None:
        self.cells: list[Cell] = []
        self.ahead: list[tuple[int, int]] = []
        """Blocks that were asked for before the kernel ahead had ended."""
        self.used: list[tuple[int, int]] = []
        """First element of a tile's query, and first key."""
        self.stored: list[int] = []

    def run(
        self, patch: pytest.MonkeyPatch, place: tuple[int, int], num_shares: int, *launch: Any
    ) -> None:
        """`launch`: what the kernel is given up to GROUP."""

        def nothing(*_: Any, **__: Any) -> None: ...

        fakes = {
            "gl": self._language(place, num_shares),
            "mbarrier": SimpleNamespace(init=nothing, invalidate=nothing, wait=self._wait),
            "find_rows": lambda boxes, table, key, *_: (int(table), int(key)),
            "ask_for_rows": self._ask,
            "warpgroup_mma": self._multiply,
            "warpgroup_mma_wait": lambda num_outstanding, deps: deps,
            "unpack": self._unpack,
            "weigh": lambda scores, key, first, maximum, total, *_: (scores, total, maximum, total),
            "gdc_wait": lambda: self.ahead.extend(c.block for c in self.cells if c.block),
            **dict.fromkeys(("silence", "fence_async_shared", "thread_barrier"), nothing),
            "gdc_launch_dependents": nothing,
        }
        for module in (hopper_blocks, decode_hopper):
            for name, value in list(vars(module).items()):
                plain = getattr(value, "fn", getattr(value, "value", value))
                if name in fakes or isinstance(plain, FunctionType | int):
                    patch.setattr(module, name, fakes.get(name, plain))
        kernel: Any = decode_hopper.attend_decode_share
        kernel(*launch, TILE_ROWS=ROWS, PAGE=64, MIN_BLOCKS=MIN_BLOCKS, EARLY=True)
        assert not any(cell.block for cell in self.cells), "all that was asked for is used"

    def _language(self, place: tuple[int, int], num_shares: int) -> SimpleNamespace:
        number, sizes = torch.as_tensor, (HEADS, num_shares)
        return SimpleNamespace(
            **{name: getattr(torch, name) for name in ("bfloat16", "float32", "int32", "int64")},
            # Numbers that tell queries apart have to stay what they are.
            float16=torch.float64,
            float8e4nv=FP8,
            program_id=lambda axis: number(place[axis], dtype=torch.int32).as_subclass(Value),
            num_programs=lambda axis: sizes[axis],
            static_range=range,
            arange=lambda start, stop, layout: torch.arange(start, stop, dtype=torch.int32),
            full=lambda shape, value, dtype, layout: torch.full(shape, value, dtype=dtype),
            zeros=lambda shape, dtype, layout: torch.zeros(shape, dtype=dtype),
            sum=lambda x, axis: x.sum(axis, dtype=x.dtype),
            associative_scan=lambda x, axis, combine: x.cumsum(axis, dtype=x.dtype),
            where=lambda choice, x, y: torch.where(number(choice), number(x), number(y)),
            maximum=lambda x, y: torch.maximum(number(x), number(y)),
            minimum=lambda x, y: torch.minimum(number(x), number(y)),
            cdiv=lambda x, y: (x + y - 1) // y,
            expand_dims=lambda x, axis: x.unsqueeze(axis),
            log2=torch.log2,
            allocate_shared_memory=self._allocate,
            load=self._load,
            store=self._store,
        )

    def _allocate(self, dtype: object, shape: list[int], layout: object) -> SimpleNamespace:
        cells = [Cell() for _ in range(shape[0])]
        self.cells += cells
        return SimpleNamespace(index=lambda place: cells[int(place)])

    def _load(self, place: Any, mask: Tensor | None = None, other: float = 0) -> Any:
        if not isinstance(place, Pointer):
            return place
        if mask is None:
            return place.column[int(place.index)]
        return torch.where(mask, place.column[place.index * mask], int(other))

    def _store(self, place: Tensor, value: Tensor, mask: Tensor) -> None:
        if value.dim() == 2:
            self.stored += place[mask[:, 0], 0].tolist()

    def _ask(
        self,
        _: object,
        block: tuple[int, int],
        first_row: int,
        place: Cell,
        ready: Cell,
        wanted: Any,
    ) -> None:
        if wanted:
            assert place.block is None, "the block before has been used"
            place.block = block
            ready.num_asked += 1

    def _unpack(self, stored: Cell, place: Cell) -> None:
        assert place.block is None, "the block before has been used"
        place.block, stored.block = stored.block, None

    def _wait(self, ready: Cell, phase: Any) -> None:
        assert ready.num_asked > 0
        assert (ready.num_asked - 1) % 2 == int(phase)

    def _multiply(
        self, left: Tensor, cell: Cell, acc: Tensor, use_acc: bool = True, is_async: bool = False
    ) -> Tensor:
        assert cell.block is not None, "the block was asked for"
        if not use_acc:
            self.used.append((int(left[0, 0]), cell.block[1]))
        cell.block = None
        return acc


@pytest.mark.parametrize("num_shares", [1, 2, 7, 33])
@pytest.mark.parametrize("has_counts", [False, True])
@pytest.mark.parametrize(
    ("seed", "stored_dtype"),
    [(seed, torch.bfloat16) for seed in range(4)] + [(4, FP8)],
)
def test_each_block_is_used_once_and_comes_ahead_only_if_it_is_older_than_the_step(
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
    stored_dtype: torch.dtype,
    has_counts: bool,
    num_shares: int,
) -> None:
    rng = random.Random(f"{seed} {has_counts} {num_shares}")
    # Tiles of (row, first token, context, count); of one row there may be several.
    tiles, starts, num_tokens = [], [], 0
    for row in range(rng.choice((1, 5, 20))):
        start, left = rng.randint(0, rng.choice((0, 63, 700))), rng.choice((1, 3, 40))
        starts.append(start)
        # Some are skipped, by their context or their count.
        tiles += [(row, 0, 0, 1), (row, 0, 70, 0)][: rng.choice((0, 0, 1, 1 + has_counts))]
        while left:
            count = min(left, ROWS // GROUP if has_counts else 1)
            start, left = start + count, left - count
            tiles.append((row, num_tokens, start, count))
            num_tokens += count

    columns = [
        Pointer(torch.tensor(column).as_subclass(Value)) for column in zip(*tiles, strict=True)
    ]
    counts = columns.pop() if has_counts else None
    strides = (TOKEN, 1, TOKEN, 1)
    boxes = SimpleNamespace(dtype=stored_dtype, layout=None)
    memory = (0, boxes, 0, *columns[:3], counts, 0, PARTS, 0, None)
    done = Programs()
    for head in range(HEADS):
        for share in range(num_shares):
            launch = (*memory, *strides, 0, 1, num_tokens, len(tiles), 1, 1.0, GROUP)
            done.run(monkeypatch, (head, share), num_shares, *launch)

    used, stored = _naive_division(tiles, num_shares)
    assert sorted(done.used) == sorted(used)
    assert sorted(done.stored) == sorted(stored)
    assert all(key + KEYS <= starts[row] for row, key in done.ahead)


def _naive_division(
    tiles: list[tuple[int, int, int, int]], num_shares: int
) -> tuple[list[tuple[int, int]], list[int]]:
    """What all programs use, and what they store: whole tiles, or the parts that are weighed."""
    blocks = [-(-context // KEYS) if count else 0 for _, _, context, count in tiles]
    share_blocks = max(-(-sum(blocks) // num_shares), MIN_BLOCKS)
    used, stored = [], []
    for tile, (_, first, _, count) in enumerate(tiles):
        if not blocks[tile]:
            continue
        begin = sum(blocks[:tile])
        shares = range(begin // share_blocks, (begin + blocks[tile] - 1) // share_blocks + 1)
        for head in range(HEADS):
            query = first * TOKEN + head * GROUP
            used += [(query, block * KEYS) for block in range(blocks[tile])]
            for row in range(count * GROUP):
                if len(shares) == 1:
                    stored.append(query + row // GROUP * TOKEN + row % GROUP)
                    continue
                parts = [2 * share + (share == shares[0]) for share in shares]
                assert max(parts) < 2 * num_shares
                stored += [PARTS + ((part * HEADS + head) * ROWS + row) * DIM for part in parts]
    return used, stored
