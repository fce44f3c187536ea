import pytest
import torch

pytest.importorskip("triton")

from raydix.kernels.small_linear import MAX_TOKENS, fits, small_linear

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("num_tokens", [0, 1, 7, MAX_TOKENS])
@pytest.mark.parametrize(("outputs", "inputs"), [(32, 512), (128, 2048), (9024, 1024)])
def test_it_is_as_near_to_float32_as_cublas(num_tokens: int, outputs: int, inputs: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(num_tokens, inputs, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(outputs, inputs, device="cuda", dtype=torch.bfloat16)

    out = small_linear(x, weight)

    torch.testing.assert_close(out.float(), x.float() @ weight.float().T, atol=0.05, rtol=0.01)


def test_other_shapes_and_dtypes_are_refused() -> None:
    x, weight = (torch.randn(size, 512, device="cuda", dtype=torch.bfloat16) for size in (4, 64))
    refused = [
        (x.float(), weight),
        (x[:, :256], weight[:, :256]),
        (x.repeat(5, 1), weight),
        (x, weight[:40]),
    ]

    assert fits(x, weight)
    for some_x, some_weight in refused:
        assert not fits(some_x, some_weight)
        with pytest.raises(ValueError):
            small_linear(some_x, some_weight)
