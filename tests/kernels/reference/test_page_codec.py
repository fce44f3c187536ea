"""What quantised pages promise, shown on the plain PyTorch twin."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from raydix.kernels.pages.page_codec import SMALLEST_MAGNITUDE, Codec, encoded_head_bytes
from raydix.kernels.reference.page_codec import decode_pages, encode_pages

CODECS = [Codec.INT8, Codec.FP8]
SHAPE = (3, 2, 2, 4, 8)
"""Pages, kv heads, key or value, tokens, head dim."""


def restore(encoded: Tensor, codec: Codec, like: Tensor) -> Tensor:
    return decode_pages(encoded, codec, like.shape[1:], like.dtype)


def scales_of(encoded: Tensor, like: Tensor) -> Tensor:
    """The scales, [pages, heads, k|v, 1, 1]."""
    heads = encoded.view(*like.shape[:2], -1)
    return heads[..., -16:-8].contiguous().view(torch.float32)[..., None, None]


@st.composite
def pages(draw: st.DrawFn, dtypes: tuple[torch.dtype, ...]) -> Tensor:
    """Random values; each head's keys and values are of another magnitude, some all zero."""
    dtype = draw(st.sampled_from(dtypes))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    low, high = (-80, 80) if dtype is not torch.float16 else (-8, 8)
    exponents = torch.tensor(draw(st.lists(st.integers(low, high), min_size=12, max_size=12))).view(
        3, 2, 2, 1, 1
    )
    values = torch.randn(SHAPE, generator=generator) * torch.exp2(exponents.float())
    is_zero = torch.tensor(draw(st.lists(st.booleans(), min_size=12, max_size=12))).view(
        3, 2, 2, 1, 1
    )
    return values.masked_fill(is_zero & (exponents > 0), 0.0).to(dtype)


@pytest.mark.parametrize("codec", CODECS)
def test_scales_follow_their_head(codec: Codec) -> None:
    kv = torch.randn(SHAPE)
    kv[1, 1, 0] = 0.0
    kv[1, 1, 0, 2, 3] = -codec.largest
    kv[1, 1, 1] = 0.0

    encoded = encode_pages(kv, codec)

    size = encoded_head_bytes(4 * 8)
    assert encoded.shape == (3, 2 * size)
    assert encoded.dtype == torch.uint8
    head = encoded[1, size:]
    keys, values = head[:32], head[32:64]
    assert keys[2 * 8 + 3] == {Codec.INT8: 256 - 127, Codec.FP8: 0xFE}[codec]
    assert int(keys.count_nonzero()) == 1
    assert not values.any()
    assert head[64:72].view(torch.float32).tolist() == [1.0, 0.0]
    assert not head[72:].any()
    alone = encode_pages(kv[1:2, 1:], codec)
    assert torch.equal(alone[0], head)


@settings(max_examples=150)
@given(kv=pages((torch.float32, torch.bfloat16, torch.float16)))
def test_int8_is_off_by_half_a_scale_at_most(kv: Tensor) -> None:
    encoded = encode_pages(kv, Codec.INT8)
    scales = scales_of(encoded, kv)

    error = (restore(encoded, Codec.INT8, kv.float()) - kv.float()).abs()

    assert torch.all(error <= scales * 0.5001)
    largest = kv.float().abs().amax((-2, -1), keepdim=True)
    assert torch.all(scales <= largest / 127 * 1.0001)


@settings(max_examples=150)
@given(kv=pages((torch.float32, torch.bfloat16, torch.float16)))
def test_fp8_is_off_by_a_sixteenth_at_most(kv: Tensor) -> None:
    """4 significant bits, and fixed steps of 2^-9 of a scale below 2^-6 of it."""
    encoded = encode_pages(kv, Codec.FP8)

    error = (restore(encoded, Codec.FP8, kv.float()) - kv.float()).abs()

    bound = torch.maximum(kv.float().abs() / 16, scales_of(encoded, kv) * 2.0**-10)
    assert torch.all(error <= bound * 1.0001)


@pytest.mark.parametrize("codec", CODECS)
@settings(max_examples=300)
@given(kv=pages((torch.float32, torch.bfloat16, torch.float16)))
def test_a_restored_page_is_encoded_to_the_same_bytes(codec: Codec, kv: Tensor) -> None:
    """A page may go down and up again any number of times without drifting."""
    encoded = encode_pages(kv, codec)

    again = encode_pages(restore(encoded, codec, kv), codec)

    assert torch.equal(again, encoded)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("value", [0.0, SMALLEST_MAGNITUDE / 2])
def test_a_page_of_zeros_or_almost_stays_zero(codec: Codec, value: float) -> None:
    kv = torch.full(SHAPE, value)

    encoded = encode_pages(kv, codec)

    assert not encoded.any()
    assert not restore(encoded, codec, kv).any()


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_holds_no_number_is_restored_as_nan_and_its_neighbours_are_not(
    codec: Codec, value: float
) -> None:
    kv = torch.randn(SHAPE)
    kv[1, 0, 1, 3, 7] = value

    encoded = encode_pages(kv, codec)
    restored = restore(encoded, codec, kv)

    assert restored[1, 0, 1].isnan().all()
    is_poisoned = torch.zeros(SHAPE, dtype=torch.bool)
    is_poisoned[1, 0, 1] = True
    assert torch.equal(restored.isnan(), is_poisoned)
    assert torch.equal(encode_pages(restored, codec), encoded)


@pytest.mark.parametrize("codec", CODECS)
def test_the_largest_numbers_survive(codec: Codec) -> None:
    kv = torch.full(SHAPE, torch.finfo(torch.bfloat16).max, dtype=torch.bfloat16)

    assert torch.equal(restore(encode_pages(kv, codec), codec, kv), kv)


def test_without_a_codec_nothing_is_scaled() -> None:
    with pytest.raises(ValueError, match="Without a codec"):
        encode_pages(torch.zeros(SHAPE), Codec.NONE)
