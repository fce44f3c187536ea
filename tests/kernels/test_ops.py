"""The operations of a model: which are chosen, and that Triton's do what the twins do."""

import pytest
import torch

from raydix.kernels.attention.form import AttentionForm
from raydix.kernels.attention.rows import AttentionRows, DecodeRows, PrefillRow
from raydix.kernels.ops import ModelOps, ReferenceOps, choose_ops
from raydix.kernels.reference import latent_attention as latent_reference
from raydix.kernels.reference import paged_attention as reference

QUERY_HEADS, KV_HEADS, DIM, PAGE_SIZE, PAGES_PER_ROW = 8, 2, 32, 16, 40


def make_ops(device: str, dtype: torch.dtype, expert_sizes: tuple[int, ...] = ()) -> ModelOps:
    return choose_ops(
        torch.device(device),
        dtype,
        head_counts=[(QUERY_HEADS, KV_HEADS)],
        head_dims=[DIM],
        expert_sizes=expert_sizes,
    )


def test_the_cpu_has_plain_pytorch() -> None:
    assert isinstance(make_ops("cpu", torch.bfloat16), ReferenceOps)


@pytest.mark.parametrize(("dtype", "sizes"), [(torch.float16, ()), (torch.bfloat16, (64, 36))])
def test_what_triton_cannot_do_is_left_to_pytorch_and_said(
    dtype: torch.dtype, sizes: tuple[int, ...], caplog: pytest.LogCaptureFixture
) -> None:
    assert isinstance(make_ops("cuda", dtype, sizes), ReferenceOps)
    assert "slow" in caplog.text


def make_tables() -> torch.Tensor:
    """Block tables of four rows."""
    return (torch.randperm(4 * PAGES_PER_ROW, device="cuda") + 1).int().view(4, -1)


def make_rows(ops: ModelOps) -> AttentionRows:
    """A step of 220 tokens: a long prefill, a decoding row, and an extension of a prefix."""
    device = torch.device("cuda")
    prefill = (
        PrefillRow(row=0, first_token=0, num_tokens=200, context_tokens=211),
        PrefillRow(row=2, first_token=201, num_tokens=19, context_tokens=600),
    )
    decode = DecodeRows(
        rows_B=torch.tensor([3], device=device),
        tokens_B=torch.tensor([200], device=device),
        context_tokens_B=torch.tensor([555], device=device),
        max_context_tokens=555,
    )

    tiles_X4, extensions_4Y = (
        torch.from_numpy(table.copy()).to(device) for table in ops.plan_tiles(prefill)
    )
    assert extensions_4Y.shape[1] > 1
    rows_Y, first_tokens_Y, counts_Y, contexts_Y = extensions_4Y
    extensions = DecodeRows(
        rows_B=rows_Y,
        tokens_B=first_tokens_Y,
        context_tokens_B=contexts_Y,
        max_context_tokens=600,
        num_tokens_B=counts_Y,
        tokens_per_tile=ops.extension_tokens,
    )
    return AttentionRows(decode=(decode, extensions), tiles_X4=tiles_X4)


@pytest.mark.gpu
@pytest.mark.parametrize("window", [None, 100])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_serves_decode_prefill_and_extension_rows_in_one_step(
    dtype: torch.dtype, window: int | None
) -> None:
    torch.manual_seed(0)
    ops, tables = make_ops("cuda", dtype), make_tables()
    shape = (1 + 4 * PAGES_PER_ROW, 2, KV_HEADS, 2, PAGE_SIZE, DIM)
    pool = torch.randn(shape, device="cuda", dtype=dtype)
    q = torch.randn(220, QUERY_HEADS, DIM, device="cuda", dtype=dtype)
    rows, form = make_rows(ops), AttentionForm(scale=DIM**-0.5, window=window)

    out = ops.paged_attention(q, pool, 1, tables, rows, form)

    expected = reference.paged_attention(q.float(), pool.float(), 1, tables, rows, form)
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(out.float(), expected, atol=tolerance, rtol=tolerance)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_latent_attention_serves_decode_prefill_and_extension_rows_in_one_step(
    dtype: torch.dtype,
) -> None:
    torch.manual_seed(0)
    ops, tables = make_ops("cuda", dtype), make_tables()
    pool = torch.randn(1 + 4 * PAGES_PER_ROW, 2, PAGE_SIZE, 3 * DIM, device="cuda", dtype=dtype)
    q = torch.randn(220, QUERY_HEADS, 3 * DIM, device="cuda", dtype=dtype)
    rows, scale, value_dim = make_rows(ops), DIM**-0.5, 2 * DIM

    out = ops.latent_attention(q, pool, 1, tables, rows, scale=scale, value_dim=value_dim)

    expected = latent_reference.latent_attention(
        q.float(), pool.float(), 1, tables, rows, scale=scale, value_dim=value_dim
    )
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(out.float(), expected, atol=tolerance, rtol=tolerance)
