"""One decoder for all supported families: embedding, layers of attention and feed-forward, final
norm, head.

Legend: T tokens of the step, R sampled rows, C hidden, V vocabulary.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from raydix.kernels.ops import ModelOps, choose_ops
from raydix.moe.layer import MoeLayer
from raydix.runtime.model.attention import AttentionBatch, FullAttention, RmsNorm, linear_parameters
from raydix.runtime.model.rope import RotaryEmbedding
from raydix.runtime.model.spec import ModelSpec


class DenseMlp(nn.Module):
    """SwiGLU feed-forward; gate and up rows are stacked in one matrix."""

    def __init__(
        self, spec: ModelSpec, ops: ModelOps, *, device: torch.device, dtype: torch.dtype
    ) -> None:
        super().__init__()
        self._ops = ops
        size, bias = spec.intermediate_size, spec.mlp_bias
        self.gate_up = linear_parameters(
            2 * size, spec.hidden_size, bias=bias, device=device, dtype=dtype
        )
        self.down = linear_parameters(spec.hidden_size, size, bias=bias, device=device, dtype=dtype)

    def forward(self, x_TC: Tensor) -> Tensor:
        """[T, C] in, [T, C] out."""
        gate_up_TI = self._ops.linear(x_TC, self.gate_up.weight, self.gate_up.bias)
        return self._ops.linear(self._ops.silu_mul(gate_up_TI), self.down.weight, self.down.bias)


class DecoderLayer(nn.Module):
    """Pre-norm attention and feed-forward with residual connections. `group` is the layer's KV
    group.
    """

    def __init__(
        self,
        spec: ModelSpec,
        layer: int,
        place: tuple[int, int],
        ops: ModelOps,
        *,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self.group, layer_in_group = place
        self.attention_norm = RmsNorm(
            spec.hidden_size, spec.rms_norm_eps, ops, device=device, dtype=dtype
        )
        self.attention = FullAttention(spec, layer_in_group, ops, device=device, dtype=dtype)
        self.mlp_norm = RmsNorm(
            spec.hidden_size, spec.rms_norm_eps, ops, device=device, dtype=dtype
        )
        self.mlp: MoeLayer | DenseMlp
        if spec.moe is not None and layer in spec.moe.layers:
            self.mlp = MoeLayer(
                spec.hidden_size,
                spec.moe.intermediate_size,
                ops,
                num_experts=spec.moe.num_experts,
                experts_per_token=spec.moe.experts_per_token,
                renormalise=spec.moe.norm_topk_prob,
                device=device,
                dtype=dtype,
            )
        else:
            self.mlp = DenseMlp(spec, ops, device=device, dtype=dtype)

    def forward(
        self,
        x_TC: Tensor | None,
        residual_TC: Tensor,
        batch: AttentionBatch,
        before_cache: Callable[[], None] | None,
    ) -> Tensor:
        """The feed-forward's output [T, C], which the next norm adds to `residual_TC`; that one
        changes in place.

        `x_TC`: what the layer before returned; None in the first layer. For `before_cache` see
        `FullAttention`.
        """
        normed_TC = (
            self.attention_norm(residual_TC)
            if x_TC is None
            else self.attention_norm(x_TC, residual_TC)
        )
        x_TC = self.attention(normed_TC, batch, batch.groups[self.group], before_cache)
        out_TC: Tensor = self.mlp(self.mlp_norm(x_TC, residual_TC))
        return out_TC


class Decoder(nn.Module):
    """The whole model on one device. Its parameters are uninitialised until a checkpoint is loaded."""

    def __init__(
        self, spec: ModelSpec, ops: ModelOps, *, device: torch.device, dtype: torch.dtype
    ) -> None:
        super().__init__()
        self.spec = spec
        self.ops = ops
        self.device = device
        self.dtype = dtype
        self.embedding = nn.Parameter(
            torch.empty(spec.vocab_size, spec.hidden_size, device=device, dtype=dtype),
            requires_grad=False,
        )
        places = _places_in_groups(spec)
        self.layers = nn.ModuleList(
            DecoderLayer(spec, layer, places[layer], ops, device=device, dtype=dtype)
            for layer in range(spec.num_layers)
        )
        self.norm = RmsNorm(spec.hidden_size, spec.rms_norm_eps, ops, device=device, dtype=dtype)
        # Tied weights are one parameter under two names.
        self.head = (
            self.embedding
            if spec.tied_embeddings
            else nn.Parameter(
                torch.empty(spec.vocab_size, spec.hidden_size, device=device, dtype=dtype),
                requires_grad=False,
            )
        )
        self.rotary = RotaryEmbedding(spec.rope, spec.head_dim, device)

    def forward(
        self,
        token_ids_T: Tensor,
        batch: AttentionBatch,
        on_layer: Callable[[int], None] | None = None,
    ) -> Tensor:
        """Run a step and return the final hidden states [T, C]; keys and values go to the pools of
        `batch`.

        `token_ids_T` int. `on_layer(i)` is called before layer i reads or writes cached KV.
        """
        residual_TC = self.embedding[token_ids_T]
        x_TC: Tensor | None = None
        for index, layer in enumerate(self.layers):
            x_TC = layer(x_TC, residual_TC, batch, _bind(on_layer, index))
        assert x_TC is not None, "a decoder has layers"
        hidden_TC: Tensor = self.norm(x_TC, residual_TC)
        return hidden_TC

    def decoder_layers(self) -> list[DecoderLayer]:
        """The layers, first to last."""
        return [layer for layer in self.layers if isinstance(layer, DecoderLayer)]

    def logits(self, hidden_RC: Tensor) -> Tensor:
        """Raw logits [R, V] of the given rows of `forward`'s result, in the model's dtype."""
        return self.ops.linear(hidden_RC, self.head, None)


def make_decoder(spec: ModelSpec, *, device: torch.device, dtype: torch.dtype) -> Decoder:
    """A decoder with the fastest operations that the device has for it."""
    ops = choose_ops(
        device,
        dtype,
        num_query_heads=spec.num_heads,
        num_kv_heads=spec.num_kv_heads,
        expert_sizes=() if spec.moe is None else (spec.hidden_size, spec.moe.intermediate_size),
    )
    return Decoder(spec, ops, device=device, dtype=dtype)


def _bind(on_layer: Callable[[int], None] | None, index: int) -> Callable[[], None] | None:
    return None if on_layer is None else lambda: on_layer(index)


def _places_in_groups(spec: ModelSpec) -> dict[int, tuple[int, int]]:
    """(group, index within the group) of every layer."""
    groups = spec.kv_layout(1, "float32").groups
    return {layer: (g, i) for g, group in enumerate(groups) for i, layer in enumerate(group.layers)}
