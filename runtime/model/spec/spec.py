"""What fixes the parameters and the arithmetic of a decoder-only model, layer by layer.

Layers may differ: what one computes otherwise is a field or a type of its own here, next to those
that there are, and never a question of the family.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from raydix.kernels.dense.glu_form import GluForm, SiluGlu
from raydix.kernels.fp8.form import Block
from raydix.kernels.int4.form import Int4Groups
from raydix.kernels.moe.routing import Routing
from raydix.kernels.state.delta_form import DeltaForm
from raydix.kernels.weights.kept_form import KeptForm
from raydix.runtime.model.spec.rope_spec import Rope


@dataclass(frozen=True, slots=True, kw_only=True)
class NormSpec:
    """A root-mean-square norm. `eps` is added to the mean square."""

    eps: float
    is_offset: bool = False
    """Do checkpoints hold the weight less one? One is added as they are read."""
    is_float32: bool = False
    """Is the product with the weight in float32, too, whatever the model's dtype?"""
    has_weight: bool = True
    """If not, nothing follows the division by the root mean square."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueSpec:
    """Values that are made of more than a product with their matrix, before they are cached."""

    head_dim: int
    """At most that of keys, as which they are cached: with zeros behind."""
    are_keys: bool = False
    """Are they what the matrix of keys says, before norm and rotation? They have none then."""
    norm: NormSpec | None = None
    """The norm of each head."""
    scale: float = 1.0
    """Multiplies them, after all else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSpec:
    """Grouped-query attention over the tokens before."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope: Rope
    scale: float
    """Multiplies the products of queries and keys."""
    qkv_bias: bool
    output_bias: bool
    qk_norm: NormSpec | None
    """The norm of each head of queries and keys, before they are rotated."""
    window: int | None = None
    """Only so many tokens are seen, the query's own among them; None: all before."""
    soft_cap: float | None = None
    """The bound of scores, which tanh bends towards it."""
    has_sinks: bool = False
    """Has each query head a logit of its own that takes a share of the softmax?"""
    whole_qk_norm: NormSpec | None = None
    """Instead of `qk_norm`: that of all heads of queries as one vector, and of all keys."""
    rotary_dim: int | None = None
    """Only the first so many dims of queries and keys are rotated; None: all."""
    values: ValueSpec | None = None
    """How values are made; None: by their matrix alone, as wide as keys."""
    source_layer: int | None = None
    """The earlier layer whose keys and values it reads; None: it has its own."""
    has_gate: bool = False
    """Is the output multiplied by the sigmoid of as many numbers, made as queries are?"""

    @property
    def value_dim(self) -> int:
        """The head dim of values."""
        return self.head_dim if self.values is None else self.values.head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttentionSpec:
    """Multi-head latent attention over all tokens before (DeepSeek-V2, arXiv:2405.04434, 2.1).

    A token is cached as one vector for all heads: `kv_lora_rank` normed dims, from which heads make
    keys and values, then `qk_rope_head_dim` rotated ones, which keys of all heads share.
    """

    num_heads: int
    q_lora_rank: int | None
    """The width in the middle of the matrix of queries; None: that is one matrix."""
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    rope: Rope
    has_interleaved_pairs: bool
    """Are dims 0 and 1 a pair that is rotated together? If not, 0 and half of the dims are."""
    scale: float
    """Multiplies the products of queries and keys."""
    bias: bool
    """Whether the matrices from and to the hidden size have a bias, but for that of queries if it
    is one.
    """
    norm: NormSpec
    """The norm of the latent, and of the middle of queries."""

    @property
    def latent_dim(self) -> int:
        """Elements that a token takes in the cache."""
        return self.kv_lora_rank + self.qk_rope_head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedDeltaSpec:
    """A state in place of keys and values, which tokens change by the gated delta rule.

    `raydix.kernels.reference.gated_delta` has the rule.
    """

    form: DeltaForm
    """The heads of all ranks."""
    norm: NormSpec
    """The norm of what a value head gets, before it is gated."""


Mixer = AttentionSpec | LatentAttentionSpec | GatedDeltaSpec
"""What a layer may know of the tokens before, and how."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseMlpSpec:
    """A gated feed-forward that every token takes. `bias`: of all three matrices."""

    intermediate_size: int
    bias: bool
    glu: GluForm = field(default_factory=SiluGlu)


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeMlpSpec:
    """A router and gated experts; `intermediate_size` is that of one expert."""

    num_experts: int
    experts_per_token: int
    intermediate_size: int
    routing: Routing
    shared: DenseMlpSpec | None
    """What every token takes besides, and is added."""
    has_shared_gate: bool = False
    """Is that multiplied by a number between 0 and 1 of each token's own?"""
    own_norm: NormSpec | None = None
    """The norms that shared and routed experts have of their own, where they do not read the same.

    Then both and the router norm the residual stream themselves, in place of the layer's norm
    before the feed-forward, and what they say is normed before it is added up.
    """
    glu: GluForm = field(default_factory=SiluGlu)
    bias: bool = False
    """Have the router and the experts' matrices biases?"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledPart:
    """A weight that stays in float8, and is multiplied as `kernels.fp8` says."""

    name: str
    """What the decoder calls it within its layer; of experts, without their number."""
    block: Block

    @property
    def form(self) -> KeptForm:
        """How it stays."""
        return self.block


@dataclass(frozen=True, slots=True, kw_only=True)
class Int4Part:
    """A weight that stays in four bits, and is multiplied as `kernels.int4` says."""

    name: str
    """What the decoder calls it within its layer; of experts, without their number."""
    form: Int4Groups


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSpec:
    """Attention, then a feed-forward, each after a norm and added to the residual stream."""

    attention: Mixer
    mlp: DenseMlpSpec | MoeMlpSpec
    norm: NormSpec | None
    """The one before attention and the one before the feed-forward; None: neither is there."""
    post_norm: NormSpec | None = None
    """The one after attention and the one after the feed-forward, before they are added.

    It is there if `norm` is not.
    """
    has_output_scale: bool = False
    """Is the residual stream multiplied by a weight of the layer's own in the end? Only a layer
    with post norms may say so.
    """
    scaled: tuple[ScaledPart | Int4Part, ...] = ()
    """The weights that stay in float8 or four bits, as far as ranks can divide them between blocks
    or groups.

    All others are floats.
    """

    @property
    def forms(self) -> Mapping[str, KeptForm]:
        """The forms of weights that stay as they are stored, by their names."""
        return {part.name: part.form for part in self.scaled}

    @property
    def mlp_norm(self) -> NormSpec | None:
        """The norm before the feed-forward, if it has none of its own."""
        return None if self.own_mlp_norm is not None else self.norm

    @property
    def own_mlp_norm(self) -> NormSpec | None:
        """The norms that parts of the feed-forward have of their own."""
        return self.mlp.own_norm if isinstance(self.mlp, MoeMlpSpec) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerInputSpec:
    """What each layer is told of each token once more: its own row of a table for all layers."""

    size: int
    """Dims that each layer is told."""
    vocab_size: int
    """The rows of the table."""
    norm: NormSpec
    """The norm of what the embedding says to a layer, and of what a layer makes of its input."""
    glu: GluForm
    """The gate is of the residual stream, and what it opens or closes the input."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """One model: an embedding, layers in order, a final norm and a head."""

    vocab_size: int
    hidden_size: int
    layers: tuple[LayerSpec, ...]
    final_norm: NormSpec
    tied_embeddings: bool
    """Is the embedding the head, too?"""
    embedding_scale: float | None = None
    """Multiplies embeddings, not the head; rounded to the model's dtype before."""
    logits_soft_cap: float | None = None
    """The bound of logits, which tanh bends towards it."""
    layer_inputs: LayerInputSpec | None = None
    """What layers are told besides; None: nothing. Only layers with post norms may be told."""

    @property
    def num_layers(self) -> int:
        """How many layers there are."""
        return len(self.layers)

    def digest(self) -> bytes:
        """32 bytes over every field: equal digests compute the same from equal weights.

        Names of types and fields are part of it, so that renaming one renames all stored pages.
        """
        return hashlib.sha256(json.dumps(_described(self), sort_keys=True).encode()).digest()


def ropes_of(layers: Iterable[LayerSpec]) -> list[Rope]:
    """The rotary embeddings of the layers that have one."""
    mixers = [layer.attention for layer in layers]
    return [mixer.rope for mixer in mixers if not isinstance(mixer, GatedDeltaSpec)]


def _described(value: Any) -> Any:
    """The value as JSON, where two types with equal fields stay two."""
    if isinstance(value, tuple):
        return [_described(each) for each in value]
    if is_dataclass(value) and not isinstance(value, type):
        described = {each.name: _described(getattr(value, each.name)) for each in fields(value)}
        return {"type": type(value).__name__, **described}
    return value
