import pytest
import torch

pytest.importorskip("triton")

from raydix.kernels.dense.small_linear import (
    MAX_TOKENS,
    LinearShape,
    divide,
    fits,
    multiply,
    small_linear,
)
from raydix.kernels.dense.summands import MAX_SUMMANDS

SHAPES = [
    LinearShape(rows=64, depth=256, num_stages=2, programs_per_sm=2),
    LinearShape(rows=64, depth=64, num_stages=3, programs_per_sm=2),
    LinearShape(rows=128, depth=128, num_stages=2, programs_per_sm=1),
]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("num_sms", [132, 78])
@pytest.mark.parametrize(
    "size", [(64, 64), (6144, 2560), (2560, 4096), (2560, 9728), (19_456, 2560), (4096, 648)]
)
def test_programs_leave_every_summand_of_a_row_once(
    shape: LinearShape, num_sms: int, size: tuple[int, int]
) -> None:
    division = divide(size, shape, num_sms)

    assert division.num_programs <= num_sms * shape.programs_per_sm
    assert division.num_summands <= MAX_SUMMANDS
    programs = [step // division.program_steps for step in range(division.all_steps)]
    assert programs[-1] == division.num_programs - 1
    met = []
    for first in range(0, division.all_steps, division.row_steps):
        # What the kernel computes: its own number less that of the first program of the row.
        of_row = programs[first : first + division.row_steps]
        summands = sorted({program - first // division.program_steps for program in of_row})
        assert summands == list(range(len(summands)))
        met.append(len(summands))
    assert max(met) <= division.num_summands


@pytest.mark.gpu
@pytest.mark.parametrize("num_tokens", [0, 1, 7, 16, MAX_TOKENS])
@pytest.mark.parametrize(
    ("outputs", "inputs"), [(8256, 520), (2112, 2048), (9024, 1024), (2560, 9728)]
)
def test_it_is_as_near_to_float32_as_cublas(num_tokens: int, outputs: int, inputs: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(num_tokens, inputs, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(outputs, inputs, device="cuda", dtype=torch.bfloat16)

    out = small_linear(x, weight)

    torch.testing.assert_close(out.float(), x.float() @ weight.float().T, atol=0.05, rtol=0.01)


@pytest.mark.gpu
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("num_tokens", [1, 5, 32])
@pytest.mark.parametrize(("outputs", "inputs"), [(256, 648), (2560, 9728), (19_456, 2560)])
def test_summands_add_up_to_the_product(
    shape: LinearShape, num_tokens: int, outputs: int, inputs: int
) -> None:
    torch.manual_seed(0)
    x = torch.randn(num_tokens, inputs, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(outputs, inputs, device="cuda", dtype=torch.bfloat16)

    out = multiply(x, weight, shape)

    total = out.float() if out.dim() == 2 else out.sum(0)
    torch.testing.assert_close(total, x.float() @ weight.float().T, atol=0.05, rtol=0.01)


@pytest.mark.gpu
@pytest.mark.parametrize("shape", SHAPES)
def test_a_row_has_the_same_bits_in_every_batch(shape: LinearShape) -> None:
    torch.manual_seed(0)
    x = torch.randn(MAX_TOKENS, 2560, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(6144, 2560, device="cuda", dtype=torch.bfloat16)

    whole = multiply(x, weight, shape)

    for num_tokens in (1, 2, 9, 16, 17):
        part = multiply(x[:num_tokens], weight, shape)
        assert torch.equal(part, whole[..., :num_tokens, :])


@pytest.mark.gpu
def test_a_kernel_behind_waits_for_the_product() -> None:
    torch.manual_seed(0)
    x = torch.randn(8, 2560, device="cuda", dtype=torch.bfloat16)
    weights = torch.randn(30, 2560, 2560, device="cuda", dtype=torch.bfloat16) / 50

    chained = x
    for weight in weights:
        chained = small_linear(chained, weight)

    waited = x
    for weight in weights:
        waited = small_linear(waited, weight)
        torch.cuda.synchronize()
    assert torch.equal(chained, waited)


@pytest.mark.gpu
def test_other_shapes_and_dtypes_are_refused() -> None:
    x, weight = (torch.randn(size, 2560, device="cuda", dtype=torch.bfloat16) for size in (4, 2048))
    refused = [
        (x.float(), weight),
        (x[:, :2048], weight[:, :2048]),
        (x.repeat(9, 1), weight),
        (x, weight[:2000]),
        (x, weight[:1024]),
        (x.repeat(1, 4), weight.view(512, -1)),
        (x[:, :2556], weight[:, :2556].contiguous()),
    ]

    assert fits(x, weight)
    for some_x, some_weight in refused:
        with pytest.raises(ValueError):
            small_linear(some_x, some_weight)
