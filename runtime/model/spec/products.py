"""The matrices that layers multiply tokens by, as the decoder makes them of a spec.

All else is small, or looked into. Names are those of the decoder within a layer; of experts,
without their number.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import assert_never

from raydix.runtime.model.spec.spec import (
    AttentionSpec,
    DenseMlpSpec,
    GatedDeltaSpec,
    LatentAttentionSpec,
    LayerSpec,
    Mixer,
    MoeMlpSpec,
)


@dataclass(frozen=True, slots=True)
class Product:
    """Weights that one product takes together."""

    num_outputs: Mapping[str, int]
    """Their outputs, of all ranks together, by name and in order."""
    num_inputs: int


Products = tuple[Product, ...]
"""Products whose weights are of one kind: floats, float8 or four bits."""


def keepable_products(layer: LayerSpec, hidden_size: int) -> Iterator[Products]:
    """The products whose weights may stay as they are stored."""
    for product in _of_mixer(layer.attention, hidden_size):
        yield (product,)
    match layer.mlp:
        case DenseMlpSpec() as dense:
            yield from _of_dense("mlp", dense, hidden_size)
        case MoeMlpSpec() as experts:
            # Operations on experts take biases with floats alone.
            if not experts.bias:
                yield _of_glu("mlp.experts", experts.intermediate_size, hidden_size)
            if experts.shared is not None:
                yield from _of_dense("mlp.shared", experts.shared, hidden_size)
        case _:
            assert_never(layer.mlp)


def _of_dense(name: str, spec: DenseMlpSpec, hidden_size: int) -> Iterator[Products]:
    for product in _of_glu(name, spec.intermediate_size, hidden_size):
        yield (product,)


def _of_glu(name: str, intermediate_size: int, hidden_size: int) -> Products:
    rows = {f"{name}.gate": intermediate_size, f"{name}.up": intermediate_size}
    return Product(rows, hidden_size), Product({f"{name}.down": hidden_size}, intermediate_size)


def _of_mixer(spec: Mixer, hidden_size: int) -> Iterator[Product]:
    match spec:
        case AttentionSpec():
            yield from _of_attention(spec, hidden_size)
        case LatentAttentionSpec():
            yield from _of_latents(spec, hidden_size)
        case GatedDeltaSpec(form=form):
            keys, values = form.num_key_heads * form.key_dim, form.num_value_heads * form.value_dim
            part = "attention.delta"
            rows = {f"{part}.q": keys, f"{part}.k": keys, f"{part}.v": values}
            yield Product(rows, hidden_size)
            yield Product({f"{part}.gate": values}, hidden_size)
            yield Product({f"{part}.output": hidden_size}, values)
        case _:
            assert_never(spec)


def _of_attention(spec: AttentionSpec, hidden_size: int) -> Iterator[Product]:
    rows = {"attention.q": spec.num_heads * spec.head_dim}
    if spec.source_layer is None:
        rows["attention.k"] = spec.num_kv_heads * spec.head_dim
        if spec.values is None or not spec.values.are_keys:
            rows["attention.v"] = spec.num_kv_heads * spec.value_dim
    yield Product(rows, hidden_size)

    value_size = spec.num_heads * spec.value_dim
    if spec.has_gate:
        yield Product({"attention.gate": value_size}, hidden_size)
    yield Product({"attention.output": hidden_size}, value_size)


def _of_latents(spec: LatentAttentionSpec, hidden_size: int) -> Iterator[Product]:
    """`kv_up` is looked into."""
    query_size = spec.num_heads * (spec.qk_nope_head_dim + spec.qk_rope_head_dim)
    if spec.q_lora_rank is None:
        yield Product({"attention.q": query_size}, hidden_size)
    else:
        yield Product({"attention.q_down": spec.q_lora_rank}, hidden_size)
        yield Product({"attention.q_up": query_size}, spec.q_lora_rank)
    yield Product({"attention.latent": spec.latent_dim}, hidden_size)
    yield Product({"attention.output": hidden_size}, spec.num_heads * spec.v_head_dim)
