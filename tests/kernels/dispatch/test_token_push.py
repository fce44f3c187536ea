from dataclasses import astuple, replace

import pytest
import torch

pytest.importorskip("triton")

from raydix.kernels.dispatch.arrivals import WHOLE_PUSH, await_tokens
from raydix.kernels.dispatch.output_sum import sum_outputs
from raydix.kernels.dispatch.token_push import push_outputs, push_tokens
from raydix.kernels.reference import token_push as reference
from tests.kernels.dispatch.token_ranks import layouts, make_arrivals, make_buffers

SEATS, CHOICES, HIDDEN, MAX_TOKENS = 5, 3, 40, 150
TOKENS = {"two": (130, 7), "three": (3, 0, 70), "one": (33,)}
MANY_TOKENS = (700, 300)
"""More than programs that wait for themselves."""


def draw_ids(num_tokens: int, num_experts: int, generator: torch.Generator) -> torch.Tensor:
    """Different experts per token; a third of the ids, and some tokens, go nowhere."""
    scores = torch.rand(num_tokens, num_experts, generator=generator)
    ids = scores.topk(CHOICES, dim=1).indices
    is_nowhere = torch.rand(ids.shape, generator=generator) < 1 / 3
    return ids.masked_fill(is_nowhere | (torch.rand(num_tokens, 1, generator=generator) < 0.2), -1)


@pytest.mark.parametrize("tokens_R", TOKENS.values(), ids=TOKENS)
@pytest.mark.parametrize("id_dtype", [torch.int32, torch.int64])
def test_tokens_and_outputs_come_where_the_twin_puts_them(
    tokens_R: tuple[int, ...], id_dtype: torch.dtype, device: torch.device, dtype: torch.dtype
) -> None:
    compare_with_twin(tokens_R, id_dtype, device, dtype)


@pytest.mark.gpu
def test_many_tokens_come_where_the_twin_puts_them() -> None:
    compare_with_twin(MANY_TOKENS, torch.int64, torch.device("cuda"), torch.bfloat16)


def compare_with_twin(
    tokens_R: tuple[int, ...], id_dtype: torch.dtype, device: torch.device, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(0)
    ranks = layouts(len(tokens_R), max(tokens_R) + 20, SEATS)
    ours, theirs = (make_buffers(ranks[0], HIDDEN, CHOICES, dtype, device) for _ in range(2))
    arrivals = [make_arrivals(device) for _ in ranks]
    first_rows = [sum(tokens_R[:rank]) for rank in range(len(tokens_R))]
    ids = [draw_ids(num, len(ranks) * SEATS, generator).to(device, id_dtype) for num in tokens_R]
    outs = [torch.randn(sum(tokens_R), HIDDEN, generator=generator).to(device, dtype) for _ in ids]

    for layout, ids_TK, first_row in zip(ranks, ids, first_rows, strict=True):
        x_TC = torch.randn(len(ids_TK), HIDDEN, generator=generator).to(device, dtype)
        weights_TK = torch.rand(len(ids_TK), CHOICES, generator=generator).to(device)
        push_tokens(x_TC, weights_TK, ids_TK, ours, layout, first_row)
        reference.push_tokens(x_TC, weights_TK, ids_TK, theirs, layout, first_row)
    for layout, out_NC, own, each in zip(ranks, outs, ours, arrivals, strict=True):
        await_tokens(own, each)
        push_outputs(out_NC, ours, layout, sum(tokens_R[: layout.rank + 1]))
        reference.push_outputs(out_NC, theirs, layout)

    for layout in ranks:
        rank = layout.rank
        summed_TC = sum_outputs(
            outs[rank], ids[rank], ours[rank], arrivals[rank], layout, first_rows[rank]
        )
        wanted_TC = reference.sum_outputs(
            outs[rank], ids[rank], theirs[rank], layout, first_rows[rank]
        )
        assert torch.equal(summed_TC, wanted_TC)
    counted = torch.full((len(ranks),), WHOLE_PUSH, dtype=torch.int32, device=device)
    for own, twin in zip(ours, theirs, strict=True):
        twin = replace(twin, tokens_arrived_R=counted, outputs_arrived_R=counted)
        for found, wanted in zip(astuple(own), astuple(twin), strict=True):
            assert torch.equal(found, wanted)


def test_counts_wrap_around(device: torch.device) -> None:
    (layout,) = layouts(1, MAX_TOKENS, SEATS)
    (own,) = make_buffers(layout, HIDDEN, CHOICES, torch.float32, device)
    arrivals = make_arrivals(device)
    last = (1 << 31) - 1
    own.tokens_arrived_R.fill_(last)
    arrivals.awaited_1.fill_(last)
    x_TC = torch.randn(2, HIDDEN, device=device)
    ids_TK = torch.zeros(2, CHOICES, dtype=torch.int32, device=device)

    push_tokens(x_TC, torch.ones(2, CHOICES, device=device), ids_TK, [own], layout, 0)
    await_tokens(own, arrivals)

    assert own.tokens_arrived_R.item() == arrivals.awaited_1.item() == last + WHOLE_PUSH - (1 << 32)


@pytest.mark.gpu
def test_who_gives_up_waits_for_nobody() -> None:
    device = torch.device("cuda")
    layout = layouts(2, MAX_TOKENS, SEATS)[0]
    own = make_buffers(layout, HIDDEN, CHOICES, torch.float32, device)[0]
    arrivals = make_arrivals(device)
    out_NC = torch.zeros(2, HIDDEN, device=device)
    ids_TK = torch.zeros(2, CHOICES, dtype=torch.int32, device=device)
    with torch.cuda.stream(torch.cuda.Stream()):
        await_tokens(own, arrivals)
        sum_outputs(out_NC, ids_TK, own, arrivals, layout, 0)
        ended = torch.cuda.current_stream().record_event()
    assert not ended.query()

    arrivals.given_up_1.fill_(1)

    ended.synchronize()


def test_odd_tokens_are_refused(device: torch.device) -> None:
    (layout,) = layouts(1, MAX_TOKENS, SEATS)
    buffers = make_buffers(layout, HIDDEN, CHOICES, torch.float32, device)
    x_TC = torch.zeros(2, HIDDEN, device=device)
    weights_TK = torch.zeros(2, CHOICES, device=device)
    ids_TK = torch.zeros(2, CHOICES, dtype=torch.int64, device=device)

    with pytest.raises(ValueError, match="Tokens are"):
        push_tokens(x_TC.double(), weights_TK, ids_TK, buffers, layout, 0)
    with pytest.raises(ValueError, match="contiguous rows"):
        push_tokens(x_TC.T.contiguous().T, weights_TK, ids_TK, buffers, layout, 0)
    with pytest.raises(ValueError, match="2 tokens from row 149 on"):
        push_tokens(x_TC, weights_TK, ids_TK, buffers, layout, MAX_TOKENS - 1)
    with pytest.raises(ValueError, match=r"Choices \(2, 3\) and \(2, 2\)"):
        push_tokens(x_TC, weights_TK, ids_TK[:, :2].contiguous(), buffers, layout, 0)
    with pytest.raises(ValueError, match="expected float32"):
        push_tokens(x_TC, weights_TK.double(), ids_TK, buffers, layout, 0)
    with pytest.raises(ValueError, match="Outputs are"):
        push_outputs(torch.zeros(2, HIDDEN - 1, device=device), buffers, layout, 2)
