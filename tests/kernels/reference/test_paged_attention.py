import math
from dataclasses import replace

import pytest
import torch

from raydix.kernels.attention.form import AttentionForm
from raydix.kernels.attention.rows import AttentionRows, DecodeRows, PrefillRow, cut_rows
from raydix.kernels.kv_cache.fp8 import FP8
from raydix.kernels.reference import paged_attention as reference
from raydix.kernels.reference.kv_write import write_kv

PAGE, HEADS, GROUP, DIM, LAYERS = 4, 2, 3, 6, 2
FORM = AttentionForm(scale=DIM**-0.5)


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def naive_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, form: AttentionForm = FORM
) -> torch.Tensor:
    """Attend one query and head at a time.

    q [T, Q, D] are the last T of the S tokens of k and v [S, H, D].
    """
    out = torch.empty_like(q)
    for t in range(q.shape[0]):
        stop = k.shape[0] - q.shape[0] + t + 1
        start = 0 if form.window is None else max(stop - form.window, 0)
        for head in range(q.shape[1]):
            keys, values = k[start:stop, head // GROUP], v[start:stop, head // GROUP]
            scores = keys @ q[t, head] / math.sqrt(DIM)
            if form.soft_cap is not None:
                scores = form.soft_cap * torch.tanh(scores / form.soft_cap)
            weights = scores.exp()
            sink = 0.0 if form.sinks_Q is None else form.sinks_Q[head].exp()
            out[t, head] = weights @ values / (weights.sum() + sink)
    return out


FORMS = {
    "plain": FORM,
    "window of one token": AttentionForm(scale=DIM**-0.5, window=1),
    "window that ends inside pages": AttentionForm(scale=DIM**-0.5, window=6),
    "window of whole pages": AttentionForm(scale=DIM**-0.5, window=2 * PAGE),
    "window beyond all contexts": AttentionForm(scale=DIM**-0.5, window=100),
    "soft cap": AttentionForm(scale=DIM**-0.5, soft_cap=0.7),
    "all at once": AttentionForm(
        scale=DIM**-0.5, window=5, soft_cap=0.9, sinks_Q=torch.linspace(-2, 2, HEADS * GROUP)
    ),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("num_tokens", [(5, 1, 1, 9), (1, 1, 1, 1), (7, 2, 3, 2)])
@pytest.mark.parametrize("query_block", [2, 256])
def test_paged_attention_matches_the_definition(
    form: AttentionForm,
    num_tokens: tuple[int, ...],
    query_block: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reference, "QUERY_BLOCK", query_block)
    monkeypatch.setattr(reference, "NARROWEST_BAND_TOKENS", query_block)
    contexts = (11, 3, 17, 9)
    pool = torch.full((40, LAYERS, HEADS, 2, PAGE, DIM), torch.nan)
    tables = (torch.randperm(39)[: 4 * 6] + 1).view(4, 6).int()
    k = [torch.randn(context, HEADS, DIM) for context in contexts]
    v = [torch.randn(context, HEADS, DIM) for context in contexts]
    for row, context in enumerate(contexts):
        positions = torch.arange(context)
        cells = tables[row, positions // PAGE].long() * PAGE + positions % PAGE
        write_kv(k[row], v[row], pool, 1, cells)
    q = torch.randn(sum(num_tokens), HEADS * GROUP, DIM)
    if form.window is not None:
        # Pages behind the window have left: their entries name the padding page, which holds NaN.
        for row, context in enumerate(contexts):
            first = max(context - num_tokens[row] - form.window + 1, 0)
            tables[row, : first // PAGE] = 0

    out = reference.paged_attention(q, pool, 1, tables, make_rows(num_tokens, contexts), form)

    expected = [
        naive_attention(part, k[row], v[row], form) for row, part in enumerate(q.split(num_tokens))
    ]
    torch.testing.assert_close(out, torch.cat(expected), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("num_tokens", [(5, 1, 1, 9), (1, 1, 1, 1)])
def test_keys_and_values_in_fp8_stand_for_their_product_with_the_scales(
    form: AttentionForm, num_tokens: tuple[int, ...]
) -> None:
    contexts = (11, 3, 17, 9)
    scales = torch.rand(2, HEADS) + 0.5
    pool = torch.randn(40, LAYERS, HEADS, 2, PAGE, DIM).to(FP8)
    tables = (torch.randperm(39)[: 4 * 6] + 1).view(4, 6).int()
    q = torch.randn(sum(num_tokens), HEADS * GROUP, DIM)
    rows = make_rows(num_tokens, contexts)

    out = reference.paged_attention(q, pool, 1, tables, rows, replace(form, kv_scales_2H=scales))

    floats = pool.float() * scales.T[:, :, None, None]
    expected = reference.paged_attention(q, floats, 1, tables, rows, form)
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)
    # Scales are of FP8 alone.
    same = reference.paged_attention(q, floats, 1, tables, rows, replace(form, kv_scales_2H=scales))
    assert torch.equal(same, expected)


def test_tiles_attend_as_the_rows_they_are_cut_from() -> None:
    pool = torch.randn(40, LAYERS, HEADS, 2, PAGE, DIM)
    tables = (torch.randperm(39)[: 4 * 6] + 1).view(4, 6).int()
    q = torch.randn(16, HEADS * GROUP, DIM)
    tiles = DecodeRows(
        rows_B=torch.tensor([2, 2, 0, 1]),
        tokens_B=torch.tensor([9, 13, 0, 0]),
        context_tokens_B=torch.tensor([14, 17, 9, 0]),
        max_context_tokens=17,
        num_tokens_B=torch.tensor([4, 3, 9, 0]),
        tokens_per_tile=9,
    )
    whole = (
        PrefillRow(row=0, first_token=0, num_tokens=9, context_tokens=9),
        PrefillRow(row=2, first_token=9, num_tokens=7, context_tokens=17),
    )

    out = reference.paged_attention(q, pool, 1, tables, AttentionRows(decode=(tiles,)), FORM)

    expected = reference.paged_attention(
        q, pool, 1, tables, AttentionRows(tiles_X4=torch.from_numpy(cut_rows(whole, 2**30))), FORM
    )
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("window", [None, 1, 200, 1000])
def test_rows_are_padded_to_at_most_twice_what_they_see(window: int | None) -> None:
    contexts = (3100, 200, 0, 210, 700, 256, 257, 1, 6200)
    rows = make_rows((1,) * len(contexts), contexts)

    bands = list(reference.single_tokens(rows, window))

    met = sorted(token for band in bands for token in band.tokens_B.tolist())
    assert met == [row for row, context in enumerate(contexts) if context]
    for band in bands:
        assert band.max_context_tokens == band.context_tokens_B.max()
        assert [contexts[row] for row in band.rows_B.tolist()] == band.context_tokens_B.tolist()
        most = window or band.max_context_tokens
        padded = min(most, band.max_context_tokens)
        for context in band.context_tokens_B.tolist():
            assert padded <= max(2 * min(most, context), reference.NARROWEST_BAND_TOKENS)


def make_rows(num_tokens: tuple[int, ...], contexts: tuple[int, ...]) -> AttentionRows:
    firsts = [sum(num_tokens[:row]) for row in range(len(num_tokens))]
    single = [row for row, count in enumerate(num_tokens) if count == 1]
    decode = DecodeRows(
        rows_B=torch.tensor(single),
        tokens_B=torch.tensor([firsts[row] for row in single]),
        context_tokens_B=torch.tensor([contexts[row] for row in single]),
        max_context_tokens=max((contexts[row] for row in single), default=0),
    )

    prompts = [
        PrefillRow(row=row, first_token=firsts[row], num_tokens=count, context_tokens=contexts[row])
        for row, count in enumerate(num_tokens)
        if count > 1
    ]
    return AttentionRows(
        decode=(decode,) if single else (), tiles_X4=torch.from_numpy(cut_rows(prompts, 2**30))
    )
