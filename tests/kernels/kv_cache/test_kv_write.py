from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from raydix.kernels.kv_cache.fp8 import FP8
from raydix.kernels.kv_cache.kv_write import rotate_and_write_kv
from raydix.kernels.kv_cache.rotation import QkNorm, RopeTables
from raydix.kernels.reference import kv_write as reference
from raydix.kernels.reference.norm import rms_norm

PAGE, LAYERS, LAYER, TOKENS, EPS = 4, 3, 1, 6, 1e-6
CELLS = (9, 22, -1, 4, 31, 18)


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


class Inputs:
    """Projections of a step, with `heads` = (query heads, KV heads, head dim), tables and cells.

    `rotary`: how many dims of a head are rotated; None: all. `pool_dtype`: None: `dtype`.
    """

    def __init__(
        self,
        heads: tuple[int, int, int],
        device: torch.device,
        dtype: torch.dtype,
        rotary: int | None = None,
        pool_dtype: torch.dtype | None = None,
    ) -> None:
        self.heads = heads
        num_query_heads, num_heads, head_dim = heads
        width = (num_query_heads + 2 * num_heads) * head_dim
        self.qkv = torch.randn(TOKENS, width).to(device, dtype)

        half = 10 * torch.randn(TOKENS, (rotary or head_dim) // 2)
        angles = torch.cat((half, half), dim=-1)
        self.rope = RopeTables(
            cos_XR=angles.cos().to(device, dtype),
            sin_XR=angles.sin().to(device, dtype),
            positions_T=None,
        )

        weights = torch.randn(2, head_dim).to(device, dtype)
        self.norm = QkNorm(q_weight_D=weights[0], k_weight_D=weights[1], eps=EPS)
        shape = (8, LAYERS, num_heads, 2, PAGE, head_dim)
        self.pool = torch.full(shape, 7.0).to(device, pool_dtype or dtype)
        self.cells = torch.tensor(CELLS, device=device)

    def expected(
        self, norm: QkNorm | None, kv_scales: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The queries and the pool, by the twins."""
        num_query_heads, num_heads, head_dim = self.heads
        heads = self.qkv.clone().view(TOKENS, -1, head_dim)
        q, k, v = heads.split((num_query_heads, num_heads, num_heads), dim=1)
        if norm is not None:
            q = rms_norm(q, norm.q_weight_D, norm.eps)
            k = rms_norm(k, norm.k_weight_D, norm.eps)
        q, k = (reference.apply_rope(x, self.rope.cos_XR, self.rope.sin_XR) for x in (q, k))
        pool, kept = self.pool.clone(), self.cells >= 0
        reference.write_kv(k[kept], v[kept], pool, LAYER, self.cells[kept], kv_scales_2H=kv_scales)
        return q, pool


@pytest.mark.parametrize(
    "heads", [(32, 4, 128), (6, 2, 80), (2, 2, 64), (8, 1, 16), (8, 1, 512), (4, 2, 192)]
)
def test_queries_are_rotated_and_keys_and_values_reach_their_cells(
    device: torch.device, heads: tuple[int, int, int], dtype: torch.dtype
) -> None:
    inputs = Inputs(heads, device, dtype)
    expected_q, expected_pool = inputs.expected(None)
    before = inputs.qkv.clone()

    q = rotate_and_write_kv(inputs.qkv, inputs.rope, None, inputs.pool, LAYER, inputs.cells)

    assert torch.equal(q, expected_q)
    assert torch.equal(inputs.qkv, before)
    assert torch.equal(inputs.pool, expected_pool)


@pytest.mark.parametrize(
    ("heads", "rotary"), [((8, 2, 128), 64), ((6, 2, 80), 20), ((4, 4, 16), 2)]
)
def test_dims_past_the_rotated_ones_are_left_as_they_are(
    device: torch.device, heads: tuple[int, int, int], rotary: int, dtype: torch.dtype
) -> None:
    inputs = Inputs(heads, device, dtype, rotary)
    expected_q, expected_pool = inputs.expected(None)

    q = rotate_and_write_kv(inputs.qkv, inputs.rope, None, inputs.pool, LAYER, inputs.cells)

    assert torch.equal(q, expected_q)
    assert torch.equal(inputs.pool, expected_pool)


@pytest.mark.parametrize(
    ("heads", "rotary"), [((32, 4, 128), None), ((6, 2, 80), None), ((8, 2, 128), 64)]
)
def test_queries_and_keys_are_normed_first(
    device: torch.device, heads: tuple[int, int, int], rotary: int | None, dtype: torch.dtype
) -> None:
    inputs = Inputs(heads, device, dtype, rotary)
    expected_q, expected_pool = inputs.expected(inputs.norm)

    out_q = rotate_and_write_kv(
        inputs.qkv, inputs.rope, inputs.norm, inputs.pool, LAYER, inputs.cells
    )

    # A sum in another order may round to the other side; the sum of two such products may cancel.
    tolerance = (
        {"atol": 1e-5, "rtol": 1e-5} if dtype == torch.float32 else {"atol": 0.06, "rtol": 2**-6}
    )
    torch.testing.assert_close(out_q, expected_q, **tolerance)
    torch.testing.assert_close(inputs.pool, expected_pool, **tolerance)
    assert (out_q != expected_q).float().mean() < (0.02 if dtype == torch.bfloat16 else 1.0)


def test_positions_choose_rows_of_the_tables(device: torch.device) -> None:
    inputs = Inputs((4, 2, 32), device, torch.float32)
    order = torch.tensor([3, 0, 2, 5, 1, 4], device=device)
    expected_q, expected_pool = inputs.expected(None)
    rope = RopeTables(
        cos_XR=inputs.rope.cos_XR[order].contiguous(),
        sin_XR=inputs.rope.sin_XR[order].contiguous(),
        positions_T=order.argsort(),
    )

    q = rotate_and_write_kv(inputs.qkv, rope, None, inputs.pool, LAYER, inputs.cells)

    assert torch.equal(q, expected_q)
    assert torch.equal(inputs.pool, expected_pool)


def test_summands_are_added_and_rounded_first(device: torch.device, dtype: torch.dtype) -> None:
    inputs = Inputs((8, 2, 64), device, dtype)
    summands = torch.randn(3, *inputs.qkv.shape).to(device)
    inputs.qkv = (summands[0] + summands[1] + summands[2]).to(dtype)
    expected_q, expected_pool = inputs.expected(None)

    q = rotate_and_write_kv(summands, inputs.rope, None, inputs.pool, LAYER, inputs.cells)

    assert torch.equal(q, expected_q)
    assert torch.equal(inputs.pool, expected_pool)


FP8_HEADS = [(32, 4, 128), (6, 2, 80), (8, 1, 16)]


def assert_fp8_pool(inputs: Inputs, norm: QkNorm | None, scales: torch.Tensor | None) -> None:
    """Write into a pool of FP8, and compare all bits with those of the twin."""
    expected_q, expected_pool = inputs.expected(norm, scales)

    q = rotate_and_write_kv(
        inputs.qkv, inputs.rope, norm, inputs.pool, LAYER, inputs.cells, kv_scales_2H=scales
    )

    assert torch.equal(q, expected_q)
    assert torch.equal(inputs.pool.view(torch.uint8), expected_pool.view(torch.uint8))


@pytest.mark.parametrize("has_scales", [False, True])
@pytest.mark.parametrize("heads", FP8_HEADS)
def test_a_pool_of_fp8_has_keys_and_values_over_their_scales(
    device: torch.device, heads: tuple[int, int, int], has_scales: bool
) -> None:
    inputs = Inputs(heads, device, torch.float32, pool_dtype=FP8)
    # What need not be rounded: Triton's interpreter does not, as GPUs do.
    inputs.qkv = (inputs.qkv * 8).round().clamp(-16, 16) / 8
    inputs.qkv[0] *= 2**10
    for table, value in ((inputs.rope.cos_XR, -1.0), (inputs.rope.sin_XR, 0.0)):
        table.fill_(value)
    powers = torch.arange(2 * heads[1], device=device) % 5 - 2
    scales = (2.0**powers).view(2, -1) if has_scales else None

    assert_fp8_pool(inputs, None, scales)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("has_scales", [False, True])
@pytest.mark.parametrize("heads", FP8_HEADS)
def test_numbers_are_rounded_to_fp8_as_the_twin_rounds_them(
    heads: tuple[int, int, int], has_scales: bool, dtype: torch.dtype
) -> None:
    device = torch.device("cuda")
    inputs = Inputs(heads, device, dtype, pool_dtype=FP8)
    # Numbers that are too large, too small, half way between two, and none.
    inputs.qkv[0] *= 1000
    inputs.qkv[1] *= 2**-9
    inputs.qkv[3] = (torch.arange(inputs.qkv.shape[1], device=device) % 512 - 256) / 16
    inputs.qkv[4, -1] = torch.nan
    scales = torch.rand(2, heads[1], device=device) + 0.3 if has_scales else None

    assert_fp8_pool(inputs, None, scales)


def test_bad_inputs_are_refused() -> None:
    good = Inputs((4, 2, 16), torch.device("cpu"), torch.float32)

    for qkv, pool, layer, cells in [
        (good.qkv.half(), good.pool.half(), 0, good.cells),
        (good.qkv, good.pool.bfloat16(), 0, good.cells),
        (good.qkv[:, :-1], good.pool, 0, good.cells),
        (good.qkv[:, : 5 * 16], good.pool, 0, good.cells),
        (good.qkv, good.pool[:, :, :1], 0, good.cells),
        (good.qkv, good.pool, LAYERS, good.cells),
        (good.qkv, good.pool, 0, good.cells[1:]),
        (good.qkv, good.pool, 0, good.cells.float()),
    ]:
        with pytest.raises(ValueError, match=r"expected|match|not among"):
            rotate_and_write_kv(qkv, good.rope, good.norm, pool, layer, cells)

    for scales in (torch.ones(2, 3), torch.ones(2, 2).double(), torch.ones(3)):
        with pytest.raises(ValueError, match="Scales of keys and values"):
            rotate_and_write_kv(
                good.qkv, good.rope, None, good.pool, 0, good.cells, kv_scales_2H=scales
            )

    for rope, norm in [
        (replace(good.rope, cos_XR=good.rope.cos_XR.half()), good.norm),
        (replace(good.rope, sin_XR=good.rope.sin_XR[1:]), good.norm),
        (replace(good.rope, sin_XR=good.rope.sin_XR[:, :8].contiguous()), good.norm),
        (replace(good.rope, positions_T=good.cells[1:]), good.norm),
        (good.rope, replace(good.norm, q_weight_D=good.norm.q_weight_D[1:])),
    ]:
        with pytest.raises(ValueError, match="expected"):
            rotate_and_write_kv(good.qkv, rope, norm, good.pool, 0, good.cells)
