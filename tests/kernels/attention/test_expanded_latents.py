"""Expanded keys and values give what the absorbed form gives."""

import pytest
import torch

from raydix.kernels.attention import expanded_latents
from raydix.kernels.attention.expanded_latents import expanded_latent_attention
from raydix.kernels.attention.rows import AttentionRows, PrefillRow, cut_rows
from raydix.kernels.reference.latent_attention import latent_attention

PAGE, HEADS, RANK, PLAIN, ROTATED, LAYERS = 4, 5, 12, 6, 4, 2
SCALE = 0.4
ROWS = (
    PrefillRow(row=0, first_token=2, num_tokens=9, context_tokens=9),
    PrefillRow(row=2, first_token=12, num_tokens=7, context_tokens=17),
)
NUM_TOKENS = 20
"""The tokens of the step, of which some belong to no row."""


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("value_dim", [6, 16], ids=["narrow", "wide"])
@pytest.mark.parametrize("pass_elements", [1, 400, 1 << 20], ids=lambda size: f"pass-{size}")
def test_expanded_attention_is_that_of_the_absorbed_form(
    device: str, value_dim: int, pass_elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expanded_latents, "PASS_ELEMENTS", pass_elements)
    torch.manual_seed(0)
    torch.set_default_device(device)
    try:
        pool = torch.randn(40, LAYERS, PAGE, RANK + ROTATED)
        # The end of a row's last page is another owner's.
        tables = (torch.randperm(39)[: 3 * 6] + 1).view(3, 6).int()
        pool[tables[0, 2], :, 1:] = pool[tables[2, 4], :, 1:] = torch.nan
        q = torch.randn(NUM_TOKENS, HEADS, PLAIN + ROTATED)
        up = torch.randn(HEADS, PLAIN + value_dim, RANK)
        out = torch.full((NUM_TOKENS, HEADS, value_dim), 7.0)

        expanded_latent_attention(q, pool, 1, tables, ROWS, up, scale=SCALE, out_TQV=out)

        key_up, value_up = up.split((PLAIN, value_dim), dim=1)
        absorbed = torch.einsum("tqb,qba->tqa", q[..., :PLAIN], key_up)
        latents = latent_attention(
            torch.cat((absorbed, q[..., PLAIN:]), dim=-1),
            pool,
            1,
            tables,
            AttentionRows(tiles_X4=torch.from_numpy(cut_rows(ROWS, 2**30))),
            scale=SCALE,
            value_dim=RANK,
        )
        expected = torch.einsum("tqa,qva->tqv", latents, value_up)
        for row in ROWS:
            tokens = slice(row.first_token, row.first_token + row.num_tokens)
            torch.testing.assert_close(out[tokens], expected[tokens], atol=1e-4, rtol=1e-4)
            out[tokens] = 7.0
        assert (out == 7.0).all()
    finally:
        torch.set_default_device("cpu")
