"""Chunks of the gated delta rule against its formula, token by token, however a row is cut."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from raydix.kernels.reference.gated_delta import gated_delta
from raydix.kernels.state.delta_form import DeltaForm
from raydix.kernels.state.delta_inputs import DeltaInputs
from tests.kernels.state.delta_rows import whole_rows

FORM = DeltaForm(num_key_heads=2, values_per_key=3, key_dim=8, value_dim=4, num_taps=4)
NUM_TOKENS = 150
PAGE_SIZE = 32
LAYER = 1
TOLERANCE = 2e-5


def make_inputs(seed: int, start: int = 0, end: int = NUM_TOKENS) -> DeltaInputs:
    random = torch.Generator().manual_seed(seed)
    channels_TX = torch.randn(NUM_TOKENS, FORM.num_channels, generator=random)
    decays_TV = -torch.rand(NUM_TOKENS, FORM.num_value_heads, generator=random)
    betas_TV = torch.rand(NUM_TOKENS, FORM.num_value_heads, generator=random)
    return DeltaInputs(
        channels_TX=channels_TX[start:end],
        taps_XK=torch.randn(FORM.num_channels, 4, generator=random),
        decays_TV=decays_TV[start:end],
        betas_TV=betas_TV[start:end],
    )


def by_token(inputs: DeltaInputs) -> Tensor:
    """The formula of the module, one token and one value head at a time."""
    taps_XK, decays_TV, betas_TV = inputs.taps_XK, inputs.decays_TV, inputs.betas_TV
    padded_TX = functional.pad(inputs.channels_TX, (0, 0, 3, 0))
    mixed_TX = torch.stack(
        [functional.silu((padded_TX[t : t + 4].T * taps_XK).sum(-1)) for t in range(NUM_TOKENS)]
    )
    out_TVE = torch.zeros(NUM_TOKENS, FORM.num_value_heads, FORM.value_dim)
    for head in range(FORM.num_value_heads):
        state_DE = torch.zeros(FORM.key_dim, FORM.value_dim)
        first_key, first_value = 8 * (head // 3), 32 + 4 * head
        for t, mixed_X in enumerate(mixed_TX):
            q_D, k_D = mixed_X[first_key : first_key + 8], mixed_X[16 + first_key : 24 + first_key]
            q_D = q_D / (q_D.square().sum() + 1e-6).sqrt() / 8**0.5
            k_D = k_D / (k_D.square().sum() + 1e-6).sqrt()
            state_DE = state_DE * decays_TV[t, head].exp()
            differs_E = mixed_X[first_value : first_value + 4] - state_DE.T @ k_D
            state_DE = state_DE + torch.outer(k_D, betas_TV[t, head] * differs_E)
            out_TVE[t, head] = state_DE.T @ q_D
    return out_TVE


def run(seed: int, cuts: Sequence[int], table: Sequence[int]) -> tuple[Tensor, Tensor]:
    """What a sequence gets that is computed in steps, and the pool that they leave."""
    pool_PLHZ = torch.zeros(9, 2, FORM.num_key_heads, FORM.head_elements)
    outs = [
        gated_delta(
            make_inputs(seed, start, end),
            pool_PLHZ,
            LAYER,
            torch.tensor([[0] * 5, table]),
            whole_rows([(1, end - start, end)]),
            FORM,
            page_size=PAGE_SIZE,
        )
        for start, end in pairwise((0, *cuts, NUM_TOKENS))
    ]
    return torch.cat(outs), pool_PLHZ


@pytest.mark.parametrize("cuts", [(), (1,), (64,), (31, 32, 33), (63, 64, 65, 128), range(1, 150)])
def test_rows_get_what_the_formula_says_wherever_steps_cut_them(cuts: Sequence[int]) -> None:
    out_TVE, _ = run(0, cuts, [3, 5, 2, 8, 1])

    torch.testing.assert_close(out_TVE, by_token(make_inputs(0)), atol=TOLERANCE, rtol=TOLERANCE)


def test_a_cut_along_the_grid_leaves_the_same_bits() -> None:
    (whole, pool), (cut, pool_of_cut) = (
        run(1, (), [3, 5, 2, 8, 1]),
        run(1, (64, 96), [3, 5, 2, 8, 1]),
    )

    assert torch.equal(whole, cut)
    assert torch.equal(pool, pool_of_cut)


def test_a_page_has_the_state_after_its_last_token_and_others_go_on_from_it() -> None:
    whole, pool = run(2, (), [0, 5, 0, 0, 1])
    assert not pool[0].any(), "page 0 is named by nobody"
    assert not pool[:, 0].any(), "the other layer has no state"

    start, end = 2 * PAGE_SIZE, 2 * PAGE_SIZE + 10
    rows = whole_rows([(0, 10, end)])
    own = pool.clone()
    out_TVE = gated_delta(
        make_inputs(2, start, end),
        own,
        LAYER,
        torch.tensor([[0, 5, 4, 0, 0]]),
        rows,
        FORM,
        page_size=PAGE_SIZE,
    )

    torch.testing.assert_close(out_TVE, whole[start:end], atol=TOLERANCE, rtol=TOLERANCE)
    assert torch.equal(own[5], pool[5]), "a page that others share is not written"
    assert own[4].any(), "its own state is in a page of its own"


def test_a_state_that_is_a_page_old_is_found() -> None:
    """The comparison above can fail."""
    whole, pool = run(3, (), [7, 5, 0, 0, 1])
    out_TVE = gated_delta(
        make_inputs(3, 64, 74),
        pool,
        LAYER,
        torch.tensor([[0, 7, 4, 0, 0]]),
        whole_rows([(0, 10, 74)]),
        FORM,
        page_size=PAGE_SIZE,
    )

    assert (out_TVE - whole[64:74]).abs().max() > 100 * TOLERANCE
