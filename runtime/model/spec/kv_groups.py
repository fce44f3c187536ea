"""Which layers of a model cache alike, and where each finds its keys and values."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from raydix.kernels.pages.page_codec import Codec
from raydix.runtime.config.kv_layout import FP8_DTYPE, GroupKind, KvGroup, KvLayout
from raydix.runtime.model.spec.spec import (
    AttentionSpec,
    GatedDeltaSpec,
    LatentAttentionSpec,
    LayerSpec,
    Mixer,
)

_DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, FP8_DTYPE: 1}


KvGrouping = Callable[[Sequence[LayerSpec]], tuple[KvGroup, ...]]
"""Says which layers share a pool; `derive_kv_groups` is what serves."""


class KvPlace(NamedTuple):
    """Where a layer's keys and values lie."""

    group: int
    layer_in_group: int
    """Its index among the layers of the group, so in the group's pool."""


def derive_kv_groups(
    layers: Sequence[LayerSpec], split_at: Sequence[int] = ()
) -> tuple[KvGroup, ...]:
    """The KV groups of a model, in the order of their first layers.

    `split_at`, rising: no group spans the border before such a layer. It is for tests that need
    several groups of a model whose layers all cache alike.
    """
    members: dict[tuple[int, KvGroup], list[int]] = {}
    for layer, spec in enumerate(layers):
        if source_layer(spec) is not None:
            continue
        section = bisect_right(split_at, layer)
        members.setdefault((section, _group_without_layers(spec.attention)), []).append(layer)
    return tuple(replace(group, layers=tuple(own)) for (_, group), own in members.items())


def make_kv_layout(
    groups: tuple[KvGroup, ...], *, page_size: int, dtype: str, codec: Codec
) -> KvLayout:
    """The shape of these groups' pages. Raises ConfigError as `KvLayout` does."""
    return KvLayout(
        page_size=page_size,
        dtype=dtype,
        dtype_bytes=_DTYPE_BYTES[dtype],
        groups=groups,
        codec=codec,
    )


def kv_places(layers: Sequence[LayerSpec], groups: Sequence[KvGroup]) -> list[KvPlace]:
    """The place of every layer: of one that reads another's keys and values, that layer's."""
    own = {
        layer: KvPlace(group, layer_in_group)
        for group, kv_group in enumerate(groups)
        for layer_in_group, layer in enumerate(kv_group.layers)
    }
    sources = [source_layer(layer) for layer in layers]
    return [own[i if source is None else source] for i, source in enumerate(sources)]


def source_layer(layer: LayerSpec) -> int | None:
    """The layer whose keys and values this one reads; None: it has its own."""
    attention = layer.attention
    return attention.source_layer if isinstance(attention, AttentionSpec) else None


def _group_without_layers(attention: Mixer) -> KvGroup:
    """What layers must agree on to share a group."""
    if isinstance(attention, GatedDeltaSpec):
        form = attention.form
        return KvGroup(
            kind=GroupKind.STATE,
            layers=(),
            num_kv_heads=form.num_key_heads,
            head_dim=form.head_elements,
        )
    if isinstance(attention, LatentAttentionSpec):
        return KvGroup(
            kind=GroupKind.LATENT, layers=(), num_kv_heads=1, head_dim=attention.latent_dim
        )
    return KvGroup(
        kind=GroupKind.FULL if attention.window is None else GroupKind.WINDOW,
        layers=(),
        num_kv_heads=attention.num_kv_heads,
        head_dim=attention.head_dim,
        window=attention.window,
    )
