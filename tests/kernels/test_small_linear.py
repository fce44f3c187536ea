import pytest
import torch

pytest.importorskip("triton")

from raydix.kernels.small_linear import MAX_TOKENS, LinearShape, fits, multiply, small_linear

SHAPES = [
    LinearShape(rows=64, depth=128, splits=1, num_warps=4, num_stages=4, ahead=8),
    LinearShape(rows=64, depth=128, splits=3, num_warps=4, num_stages=4, ahead=4),
    LinearShape(rows=32, depth=64, splits=5, num_warps=4, num_stages=3, ahead=0),
]


@pytest.mark.gpu
@pytest.mark.parametrize("num_tokens", [0, 1, 7, 16, MAX_TOKENS])
@pytest.mark.parametrize(("outputs", "inputs"), [(32, 512), (128, 2048), (9024, 1024)])
def test_it_is_as_near_to_float32_as_cublas(num_tokens: int, outputs: int, inputs: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(num_tokens, inputs, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(outputs, inputs, device="cuda", dtype=torch.bfloat16)

    out = small_linear(x, weight)

    torch.testing.assert_close(out.float(), x.float() @ weight.float().T, atol=0.05, rtol=0.01)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("num_tokens", [1, 5, 16])
def test_summands_of_splits_add_up_to_the_product(
    device: torch.device, shape: LinearShape, num_tokens: int
) -> None:
    torch.manual_seed(0)
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    x, weight = torch.randn(num_tokens, 640), torch.randn(192, 640)

    out = multiply(x.to(device, dtype), weight.to(device, dtype), shape)

    assert out.shape == (
        (num_tokens, 192) if shape.splits == 1 else (shape.splits, num_tokens, 192)
    )
    total = out if shape.splits == 1 else out.sum(0)
    expected = x.to(dtype).float() @ weight.to(dtype).float().T
    torch.testing.assert_close(total.float().cpu(), expected, atol=2e-3, rtol=0.01)


@pytest.mark.gpu
@pytest.mark.parametrize("shape", SHAPES)
def test_a_row_has_the_same_bits_in_every_batch(shape: LinearShape) -> None:
    torch.manual_seed(0)
    x = torch.randn(MAX_TOKENS, 640, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(192, 640, device="cuda", dtype=torch.bfloat16)

    whole = multiply(x, weight, shape)

    for num_tokens in (1, 2, 9, 16, 17):
        part = multiply(x[:num_tokens], weight, shape)
        assert torch.equal(part, whole[..., :num_tokens, :])


@pytest.mark.gpu
def test_other_shapes_and_dtypes_are_refused() -> None:
    x, weight = (torch.randn(size, 512, device="cuda", dtype=torch.bfloat16) for size in (4, 64))
    refused = [
        (x.float(), weight),
        (x[:, :256], weight[:, :256]),
        (x.repeat(9, 1), weight),
        (x, weight[:40]),
    ]

    assert fits(x, weight)
    for some_x, some_weight in refused:
        assert not fits(some_x, some_weight)
        with pytest.raises(ValueError):
            small_linear(some_x, some_weight)
