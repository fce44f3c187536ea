"""The kernels of the gated delta rule against their twin, which is held to the formula."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from raydix.kernels.attention.rows import DecodeRows
from raydix.kernels.reference import gated_delta as reference
from raydix.kernels.state.delta_form import DeltaForm
from raydix.kernels.state.delta_inputs import DeltaInputs
from raydix.kernels.state.gated_delta import gated_delta
from tests.kernels.state.delta_rows import whole_rows

LAYER = 1
TABLES = ((3, 5, 2, 8), (0, 0, 0, 0), (0, 4, 0, 9), (0, 0, 1, 7))
"""Pages of four rows; the second has the padding page alone."""
SMALL = DeltaForm(num_key_heads=2, values_per_key=2, key_dim=8, value_dim=4, num_taps=4)
LARGE = DeltaForm(num_key_heads=1, values_per_key=2, key_dim=128, value_dim=80, num_taps=3)
Rows = Sequence[tuple[int, int, int]]


class Step:
    """Random inputs, a pool of random states, and what is made of them."""

    def __init__(
        self,
        rows: Rows,
        form: DeltaForm,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
        page_size: int = 32,
    ) -> None:
        random = torch.Generator().manual_seed(0)
        num_tokens, heads = sum(count for _, count, _ in rows), form.num_value_heads
        self.form, self.page_size = form, page_size
        self.rows = whole_rows(rows, device)
        self.tables_RN = torch.tensor(TABLES, dtype=torch.int32, device=device)
        pool_PLHZ = torch.randn(10, 2, form.num_key_heads, form.head_elements, generator=random)
        self.pool_PLHZ = pool_PLHZ.to(dtype).float().to(device)

        channels_TX = torch.randn(num_tokens, form.num_channels, generator=random)
        taps_XK = torch.randn(form.num_channels, form.num_taps, generator=random)
        decays_TV = -torch.rand(num_tokens, heads, generator=random)
        self.inputs = DeltaInputs(
            channels_TX=channels_TX.to(device, dtype),
            taps_XK=taps_XK.to(device, dtype),
            decays_TV=decays_TV.to(device),
            betas_TV=torch.rand(num_tokens, heads, generator=random).to(device),
        )

    def run(self) -> tuple[Tensor, Tensor]:
        """What the tokens get, and the pool afterwards."""
        pool_PLHZ = self.pool_PLHZ.clone()
        return self.run_in(pool_PLHZ), pool_PLHZ

    def run_in(self, pool_PLHZ: Tensor) -> Tensor:
        """What the tokens get, with the states of this pool."""
        return gated_delta(
            self.inputs,
            pool_PLHZ,
            LAYER,
            self.tables_RN,
            self.rows,
            self.form,
            page_size=self.page_size,
        )

    def expected(self) -> tuple[Tensor, Tensor]:
        """The same by the twin."""
        pool_PLHZ = self.pool_PLHZ.clone()
        out_TVE = reference.gated_delta(
            self.inputs,
            pool_PLHZ,
            LAYER,
            self.tables_RN,
            self.rows,
            self.form,
            page_size=self.page_size,
        )
        return out_TVE, pool_PLHZ

    def assert_equal(self) -> None:
        """Do kernels and twin make the same?"""
        (out, pool), (expected_out, expected_pool) = self.run(), self.expected()
        is_float32 = out.dtype == torch.float32
        tolerance = 2e-5 if is_float32 else 1e-2
        torch.testing.assert_close(out, expected_out, atol=tolerance, rtol=tolerance)
        torch.testing.assert_close(pool, expected_pool, atol=tolerance, rtol=tolerance)
        assert torch.equal(pool[0], self.pool_PLHZ[0]), "nobody writes the padding page"
        assert torch.equal(pool[:, 0], self.pool_PLHZ[:, 0]), "the other layer has its states still"


@pytest.mark.parametrize("form", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("end", [1, 2, 3, 32, 33, 100])
def test_a_token_changes_the_state_of_the_one_before(
    form: DeltaForm, end: int, device: torch.device, dtype: torch.dtype
) -> None:
    Step([(0, 1, end)], form, device, dtype).assert_equal()


def test_rows_of_one_token_go_each_to_their_own_page(device: torch.device) -> None:
    rows = [(0, 1, 70), (1, 1, 9), (2, 1, 33), (3, 1, 96)]

    Step(rows, SMALL, device).assert_equal()


@pytest.mark.parametrize(
    ("form", "row"),
    [
        *((SMALL, row) for row in ((0, 2, 2), (0, 2, 3), (0, 128, 128), (2, 99, 107), (0, 3, 98))),
        *((LARGE, row) for row in ((0, 75, 100), (3, 40, 40))),
    ],
)
def test_a_prompt_leaves_states_where_its_pages_end(
    form: DeltaForm, row: tuple[int, int, int], device: torch.device, dtype: torch.dtype
) -> None:
    Step([row], form, device, dtype).assert_equal()


@pytest.mark.parametrize("page_size", [1, 4, 64])
def test_chunks_end_where_pages_of_any_size_do(page_size: int, device: torch.device) -> None:
    context = min(4 * page_size, 150)

    Step([(0, context - 1, context)], SMALL, device, page_size=page_size).assert_equal()
    Step([(0, context, context)], SMALL, device, page_size=page_size).assert_equal()


def test_prompts_and_single_tokens_are_served_in_one_step(device: torch.device) -> None:
    rows = [(2, 20, 60), (0, 1, 70), (1, 5, 5), (3, 70, 120)]

    Step(rows, SMALL, device).assert_equal()


def test_equal_keys_that_nothing_forgets_lose_no_digits(device: torch.device) -> None:
    """Each token then takes back all that the one before it added."""
    step = Step([(0, 64, 64)], SMALL, device, page_size=64)
    inputs = step.inputs
    step.inputs = replace(
        inputs,
        channels_TX=inputs.channels_TX[:1].expand(64, -1).contiguous(),
        decays_TV=torch.zeros_like(inputs.decays_TV),
        betas_TV=torch.ones_like(inputs.betas_TV),
    )

    step.assert_equal()


@pytest.mark.parametrize("count", [1, 40])
def test_rows_without_context_do_nothing(count: int, device: torch.device) -> None:
    step = Step([(0, count, 40)], SMALL, device)
    step.rows = tuple(_skipped(some) for some in step.rows)

    _, pool = step.run()

    assert torch.equal(pool, step.pool_PLHZ)


def _skipped(rows: DecodeRows) -> DecodeRows:
    return replace(rows, context_tokens_B=torch.zeros_like(rows.context_tokens_B))


def test_a_cut_along_the_grid_leaves_the_same_bits(device: torch.device) -> None:
    whole = Step([(0, 128, 128)], SMALL, device)
    out, pool = whole.run()

    parts = []
    for start, end in ((0, 64), (64, 128)):
        part = Step([(0, end - start, end)], SMALL, device)
        part.inputs = DeltaInputs(
            channels_TX=whole.inputs.channels_TX[start:end],
            taps_XK=whole.inputs.taps_XK,
            decays_TV=whole.inputs.decays_TV[start:end],
            betas_TV=whole.inputs.betas_TV[start:end],
        )
        part.pool_PLHZ = whole.pool_PLHZ if start == 0 else parts[-1][1]
        parts.append(part.run())

    assert torch.equal(torch.cat([part[0] for part in parts]), out)
    assert torch.equal(parts[-1][1], pool)


def test_a_state_of_another_page_is_found(device: torch.device) -> None:
    """The comparisons above can fail."""
    step = Step([(0, 1, 70)], SMALL, device)
    expected, _ = step.expected()
    step.tables_RN = torch.tensor([[3, 5, 4, 8]], dtype=torch.int32, device=device)

    out, _ = step.run()

    assert (out - expected).abs().max() > 1e-2


def test_tokens_of_no_row_get_zeros_beside_prompts(device: torch.device) -> None:
    """They are padding of a captured step, and go on to other layers."""
    step = Step([(2, 20, 60), (0, 1, 70), (3, 30, 30)], SMALL, device)
    expected, _ = step.run()
    step.rows = tuple(_without_slot(some, 3) for some in step.rows)

    out, _ = step.run()

    assert not out[21:].any()
    assert torch.equal(out[:21], expected[:21])


def _without_slot(rows: DecodeRows, slot: int) -> DecodeRows:
    contexts_B = rows.context_tokens_B.where(rows.rows_B != slot, 0)
    return replace(rows, context_tokens_B=contexts_B)


PROMPTS = [(0, 1, 70), (2, 40, 97), (1, 1, 9), (3, 9, 34)]
MORE_PROMPTS = [(0, 1, 96), (2, 30, 70), (1, 1, 30), (3, 19, 19)]


@pytest.mark.gpu
def test_a_graph_of_prompts_replays_other_rows(dtype: torch.dtype, device: torch.device) -> None:
    first, other = (Step(some, SMALL, device, dtype) for some in (PROMPTS, MORE_PROMPTS))
    first.inputs = other.inputs
    first.run()
    graph, pool_PLHZ = torch.cuda.CUDAGraph(), first.pool_PLHZ.clone()
    with torch.cuda.graph(graph):
        out_TVE = first.run_in(pool_PLHZ)
    for mine, others in zip(first.rows, other.rows, strict=True):
        for name in ("rows_B", "tokens_B", "context_tokens_B", "num_tokens_B"):
            if getattr(mine, name) is not None:
                getattr(mine, name).copy_(getattr(others, name))
    pool_PLHZ.copy_(first.pool_PLHZ)

    graph.replay()

    expected_out, expected_pool = other.run()
    assert torch.equal(out_TVE, expected_out)
    assert torch.equal(pool_PLHZ, expected_pool)


@pytest.mark.gpu
def test_a_graph_replays_other_rows(dtype: torch.dtype, device: torch.device) -> None:
    rows = [(0, 1, 70), (1, 1, 9), (2, 1, 34), (3, 1, 97)]
    first, other = (Step(some, SMALL, device, dtype) for some in (rows, rows[::-1]))
    first.run()
    graph, pool_PLHZ = torch.cuda.CUDAGraph(), first.pool_PLHZ.clone()
    with torch.cuda.graph(graph):
        out_TVE = first.run_in(pool_PLHZ)
    for name in ("rows_B", "tokens_B", "context_tokens_B"):
        getattr(first.rows[0], name).copy_(getattr(other.rows[0], name))
    pool_PLHZ.copy_(first.pool_PLHZ)

    graph.replay()

    expected_out, expected_pool = other.run()
    assert torch.equal(out_TVE, expected_out)
    assert torch.equal(pool_PLHZ, expected_pool)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"channels_TX": torch.zeros(3, 5)}, "Channels are"),
        ({"taps_XK": torch.zeros(40, 3)}, "Taps are"),
        ({"decays_TV": torch.zeros(3, 6, dtype=torch.bfloat16)}, "Decays are torch.bfloat16"),
        ({"betas_TV": torch.zeros(3, 5)}, "Betas are"),
    ],
)
def test_inputs_of_other_shapes_are_refused(change: dict[str, Tensor], message: str) -> None:
    step = Step([(0, 3, 3)], SMALL, torch.device("cpu"))
    step.inputs = replace(step.inputs, **change)

    with pytest.raises(ValueError, match=message):
        step.run()


def test_pages_of_other_shapes_are_refused() -> None:
    step = Step([(0, 3, 3)], SMALL, torch.device("cpu"))
    with pytest.raises(ValueError, match="Pages have 48 tokens"):
        Step([(0, 3, 3)], SMALL, torch.device("cpu"), page_size=48).run()

    step.tables_RN = step.tables_RN.long()
    with pytest.raises(ValueError, match=r"Block tables are torch\.int64"):
        step.run()
    step.pool_PLHZ = step.pool_PLHZ[..., :-1]
    with pytest.raises(ValueError, match=r"The pool is torch\.float32"):
        step.run()
