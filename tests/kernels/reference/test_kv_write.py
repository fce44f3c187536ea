import pytest
import torch

from raydix.kernels.kv_cache.fp8 import FP8
from raydix.kernels.kv_cache.rotation import QkNorm, RopeTables
from raydix.kernels.reference.kv_write import apply_rope, rotate_and_write_kv, write_kv
from raydix.kernels.reference.norm import rms_norm

PAGE, HEADS, DIM, LAYERS = 4, 2, 6, 2


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def test_skipped_tokens_touch_the_padding_page_alone() -> None:
    pool = torch.zeros(3, LAYERS, HEADS, 2, PAGE, DIM)
    k, v = torch.randn(2, 3, HEADS, DIM)

    write_kv(k, v, pool, 0, torch.tensor([-1, 2 * PAGE + 3, -1]))

    assert torch.equal(pool[2, 0, :, 0, 3], k[1])
    assert torch.equal(pool[2, 0, :, 1, 3], v[1])
    pool[2, 0, :, :, 3] = 0
    assert not pool[1:].any()
    assert not pool[:, 1].any()


def test_in_fp8_the_nearest_numbers_over_the_scales_are_stored() -> None:
    pool = torch.zeros(2, LAYERS, HEADS, 2, PAGE, DIM).to(FP8)
    scales = torch.tensor([[0.5, 2.0], [4.0, 1.0]])
    numbers = torch.tensor([0.0, 1.0625, 1.1875, 500.0, -1e9, torch.nan])
    k = scales[0][None, :, None] * numbers.expand(1, HEADS, DIM)
    v = scales[1][None, :, None] * numbers.expand(1, HEADS, DIM)

    write_kv(k, v, pool, 0, torch.tensor([PAGE + 1]), kv_scales_2H=scales)

    # Halves go to the even one; what is too large is the largest.
    stored = torch.tensor([0.0, 1.0, 1.25, 448.0, -448.0, torch.nan])
    expected = stored.expand(HEADS, 2, DIM)
    torch.testing.assert_close(
        pool[1, 0, :, :, 1].float(), expected, rtol=0, atol=0, equal_nan=True
    )


def test_rope_rotates_each_pair_by_its_angle() -> None:
    x, angles = torch.randn(3, 2, 4), torch.randn(3, 2)
    doubled = torch.cat((angles, angles), dim=-1)

    out = apply_rope(x, doubled.cos(), doubled.sin())

    pairs, rotated = (torch.complex(part[..., :2], part[..., 2:]) for part in (x, out))
    torch.testing.assert_close(rotated, pairs * torch.exp(1j * angles)[:, None])


def test_rope_leaves_dims_past_the_tables_as_they_are() -> None:
    x, angles = torch.randn(3, 2, 10), torch.randn(3, 3).repeat(1, 2)

    out = apply_rope(x, angles.cos(), angles.sin())

    assert torch.equal(out[..., :6], apply_rope(x[..., :6], angles.cos(), angles.sin()))
    assert torch.equal(out[..., 6:], x[..., 6:])


def test_the_fused_write_is_norm_rotation_and_write() -> None:
    qkv = torch.randn(3, 4 * HEADS * DIM)
    norm = QkNorm(q_weight_D=torch.randn(DIM), k_weight_D=torch.randn(DIM), eps=1e-6)
    rope = RopeTables(
        cos_XR=torch.randn(9, DIM // 2).repeat(1, 2),
        sin_XR=torch.randn(9, DIM // 2).repeat(1, 2),
        positions_T=torch.tensor([8, 0, 3]),
    )
    cells = torch.tensor([17, 33, 40])
    pool, expected_pool = torch.zeros(2, 11, LAYERS, HEADS, 2, PAGE, DIM).unbind()

    out = rotate_and_write_kv(qkv, rope, norm, pool, 1, cells)

    q, k, v = qkv.view(3, -1, DIM).split((2 * HEADS, HEADS, HEADS), dim=1)
    cos, sin = rope.cos_XR[rope.positions_T], rope.sin_XR[rope.positions_T]
    rotated = [
        apply_rope(rms_norm(x, weight, 1e-6), cos, sin)
        for x, weight in ((q, norm.q_weight_D), (k, norm.k_weight_D))
    ]
    write_kv(rotated[1], v, expected_pool, 1, cells)
    assert torch.equal(out, rotated[0])
    assert torch.equal(pool, expected_pool)
