from dataclasses import replace

import pytest

from raydix.errors import ConfigError
from raydix.kernels.pages.page_codec import Codec
from raydix.runtime.config.kv_layout import FP8_DTYPE, GroupKind, KvGroup, KvLayout
from raydix.runtime.config.kv_shard import KvShard

GROUP = KvGroup(kind=GroupKind.FULL, layers=(0, 2, 3), num_kv_heads=2, head_dim=8)
LAYOUT = KvLayout(page_size=4, dtype="bfloat16", dtype_bytes=2, groups=(GROUP,))


def test_a_page_holds_keys_and_values_of_every_layer_and_head() -> None:
    assert LAYOUT.payload_bytes(0) == 3 * 2 * 2 * 4 * 8 * 2
    assert LAYOUT.host_page_bytes(0) == 64 + LAYOUT.payload_bytes(0)


@pytest.mark.parametrize("codec", [Codec.INT8, Codec.FP8])
def test_an_encoded_page_holds_a_byte_per_element_and_scales_per_head(codec: Codec) -> None:
    layout = replace(LAYOUT, codec=codec)

    assert layout.payload_bytes(0) == 3 * 2 * (2 * 4 * 8 + 16)
    assert layout.host_page_bytes(0) == 64 + 512
    assert layout.token_bytes == LAYOUT.token_bytes


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"head_dim": 6}, "have 24 keys per head"),
        ({"kind": GroupKind.LATENT}, "cannot encode latent KV"),
    ],
)
def test_pages_that_a_codec_cannot_encode_are_refused(
    change: dict[str, object], message: str
) -> None:
    groups = (GROUP, replace(GROUP, **change))  # type: ignore[arg-type]
    assert (
        KvLayout(page_size=4, dtype="bfloat16", dtype_bytes=2, groups=groups).payload_bytes(1) > 0
    )

    with pytest.raises(ConfigError, match=message):
        KvLayout(page_size=4, dtype="bfloat16", dtype_bytes=2, groups=groups, codec=Codec.INT8)


def test_in_fp8_keys_and_values_take_a_byte_each_and_states_what_they_did() -> None:
    groups = (GROUP, replace(GROUP, kind=GroupKind.STATE))
    plain = replace(LAYOUT, groups=groups)

    layout = replace(plain, dtype=FP8_DTYPE, dtype_bytes=1)

    assert 2 * layout.payload_bytes(0) == plain.payload_bytes(0)
    assert layout.payload_bytes(1) == plain.payload_bytes(1)
    assert 2 * KvShard(layout=layout).page_bytes(0) == KvShard(layout=plain).page_bytes(0)


def test_latents_in_fp8_are_refused() -> None:
    groups = (GROUP, replace(GROUP, kind=GroupKind.LATENT))

    with pytest.raises(ConfigError, match="kv_dtype is fp8_e4m3; this model caches latents"):
        KvLayout(page_size=4, dtype=FP8_DTYPE, dtype_bytes=1, groups=groups)


def test_a_window_reaches_back_as_many_pages_as_its_next_token_sees() -> None:
    groups = (
        GROUP,
        replace(GROUP, kind=GroupKind.LATENT),
        replace(GROUP, kind=GroupKind.WINDOW, window=6),
    )

    assert replace(LAYOUT, groups=groups).reaches == (None, None, 2)


def test_a_window_group_without_a_window_is_refused() -> None:
    with pytest.raises(ValueError, match="no window"):
        replace(GROUP, kind=GroupKind.WINDOW).reach(4)
