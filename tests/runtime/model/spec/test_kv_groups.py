from dataclasses import replace

import pytest

from raydix.kernels.pages.page_codec import Codec
from raydix.runtime.config.kv_layout import GroupKind
from raydix.runtime.model.spec.kv_groups import KvPlace, derive_kv_groups, kv_places, make_kv_layout
from tests.runtime.model.spec.test_spec import ATTENTION, DENSE, LATENT_ATTENTION, SPARSE

LAYERS = (DENSE, SPARSE, DENSE, SPARSE, DENSE)


def test_layers_that_cache_alike_form_one_group_whatever_else_they_compute() -> None:
    [group] = derive_kv_groups(LAYERS)

    assert (group.kind, group.layers) == (GroupKind.FULL, (0, 1, 2, 3, 4))
    assert (group.num_kv_heads, group.head_dim) == (2, 8)


def test_layers_that_cache_otherwise_form_another_group() -> None:
    wide = replace(DENSE, attention=replace(ATTENTION, head_dim=16))

    groups = derive_kv_groups((DENSE, wide, DENSE, wide, wide))

    assert [(group.layers, group.head_dim) for group in groups] == [((0, 2), 8), ((1, 3, 4), 16)]


def test_layers_of_equal_windows_form_a_window_group() -> None:
    narrow, wide = (
        replace(DENSE, attention=replace(ATTENTION, window=window)) for window in (6, 9)
    )
    capped = replace(DENSE, attention=replace(ATTENTION, window=6, soft_cap=2.0, has_sinks=True))

    groups = derive_kv_groups((narrow, DENSE, wide, capped))

    assert [(group.kind, group.layers, group.window) for group in groups] == [
        (GroupKind.WINDOW, (0, 3), 6),
        (GroupKind.FULL, (1,), None),
        (GroupKind.WINDOW, (2,), 9),
    ]


def test_layers_of_latent_attention_form_a_group_of_one_vector_per_token() -> None:
    latent = replace(DENSE, attention=LATENT_ATTENTION)

    [full, group] = derive_kv_groups((DENSE, latent, latent))

    assert (full.kind, full.layers) == (GroupKind.FULL, (0,))
    assert (group.kind, group.layers) == (GroupKind.LATENT, (1, 2))
    assert group.token_elements == 2 * (16 + 4)


@pytest.mark.parametrize(
    ("split_at", "expected"),
    [
        ((2,), [(0, 1), (2, 3, 4)]),
        ((1, 4), [(0,), (1, 2, 3), (4,)]),
        ((5,), [(0, 1, 2, 3, 4)]),
    ],
)
def test_a_test_may_split_layers_that_cache_alike(
    split_at: tuple[int, ...], expected: list[tuple[int, ...]]
) -> None:
    groups = derive_kv_groups(LAYERS, split_at)

    assert [group.layers for group in groups] == expected
    assert {group.kind for group in groups} == {GroupKind.FULL}


def test_every_layer_has_a_place_of_its_own() -> None:
    places = kv_places(LAYERS, derive_kv_groups(LAYERS, (2,)))

    assert places == [
        KvPlace(0, 0),
        KvPlace(0, 1),
        KvPlace(1, 0),
        KvPlace(1, 1),
        KvPlace(1, 2),
    ]


def test_a_layer_that_reads_anothers_keys_and_values_takes_no_place_of_its_own() -> None:
    wide = replace(DENSE, attention=replace(ATTENTION, head_dim=16))
    reader = replace(DENSE, attention=replace(ATTENTION, source_layer=0))
    layers = (DENSE, wide, DENSE, reader)

    groups = derive_kv_groups(layers)

    assert [group.layers for group in groups] == [(0, 2), (1,)]
    assert kv_places(layers, groups)[3] == KvPlace(0, 0)


def test_splitting_changes_no_bytes_of_a_token() -> None:
    layouts = [
        make_kv_layout(
            derive_kv_groups(LAYERS, split_at), page_size=16, dtype="bfloat16", codec=Codec.NONE
        )
        for split_at in ((), (2,))
    ]

    assert [layout.token_bytes for layout in layouts] == [5 * 2 * 2 * 8 * 2] * 2
