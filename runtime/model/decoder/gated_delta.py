"""A layer that keeps a state in place of keys and values, by the gated delta rule.

Legend: T tokens of the step, C hidden, X channels, V value heads, E value dim, K taps.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from raydix.errors import ConfigError
from raydix.kernels.ops import ModelOps
from raydix.kernels.state.delta_inputs import DeltaInputs
from raydix.kernels.weights.linear_weight import WeightMaker
from raydix.kernels.weights.rank_share import RankShare
from raydix.kernels.weights.weight_part import WeightPart, cut_heads, prefixed
from raydix.runtime.model.decoder.attention import AttentionBatch, GroupBatch
from raydix.runtime.model.decoder.rms_norm import RmsNorm
from raydix.runtime.model.spec.spec import GatedDeltaSpec


class GatedDelta(nn.Module):
    """The heads of one rank. `layer_in_group` is the layer's place in the pool of states.

    A checkpoint has queries, keys and values, and the taps of their channels, apart.
    """

    def __init__(
        self,
        spec: GatedDeltaSpec,
        hidden_size: int,
        layer_in_group: int,
        ops: ModelOps,
        *,
        share: RankShare,
        weights: WeightMaker,
    ) -> None:
        super().__init__()
        self.spec = spec
        self.layer_in_group = layer_in_group
        self._ops = ops
        self._share = share
        self._key_heads = _key_heads(spec, share)
        self._form = replace(spec.form, num_key_heads=len(self._key_heads))

        form, device, dtype = self._form, weights.device, weights.dtype
        made = weights.within("delta")
        channels = dict(zip("qkv", self._channel_counts(), strict=True))
        self.inputs = made.rows(channels, hidden_size, bias=False, share=share)
        gates = form.num_value_heads * form.value_dim
        self.gate = made.rows({"gate": gates}, hidden_size, bias=False, share=share)
        # How fast each value head forgets, and how much it learns.
        self.rates = made.plain(2 * form.num_value_heads, hidden_size, bias=False)
        self.output = made.columns("output", hidden_size, gates, bias=False, share=share)
        self.norm = RmsNorm(spec.norm, form.value_dim, ops, device=device, dtype=dtype)
        self.taps_X1K = _empty((form.num_channels, 1, form.num_taps), device, dtype)
        self.decay_log_V = _empty((form.num_value_heads,), device, torch.float32)
        self.step_bias_V = _empty((form.num_value_heads,), device, torch.float32)

    def weights(self) -> dict[str, WeightPart]:
        """Parts of all tensors that a checkpoint has."""
        whole = self.spec.form
        q, k, v = self.inputs.split(self._channel_counts())
        taps = self.taps_X1K.split(self._channel_counts())
        decay, beta = self.rates.split([self._form.num_value_heads] * 2)
        weights = prefixed(
            "output",
            self.output.column_parts(self._share, whole.num_value_heads * whole.value_dim),
        )
        for name, weight, taps_X1K in zip("qk", (q, k), taps[:2], strict=True):
            weights |= prefixed(name, weight.head_parts(self._key_heads, whole.num_key_heads))
            weights[f"{name}_taps.weight"] = cut_heads(
                taps_X1K, self._key_heads, whole.num_key_heads
            )

        heads, num_heads = self._value_heads(), whole.num_value_heads
        for name, weight in (("v", v), ("gate", self.gate), ("decay", decay), ("beta", beta)):
            weights |= prefixed(name, weight.head_parts(heads, num_heads))
        weights["v_taps.weight"] = cut_heads(taps[2], heads, num_heads)
        weights["A_log"] = cut_heads(self.decay_log_V, heads, num_heads)
        weights["dt_bias"] = cut_heads(self.step_bias_V, heads, num_heads)
        weights["norm.weight"] = WeightPart(self.norm.weight)
        return prefixed("delta", weights)

    def forward(
        self,
        x_TC: Tensor,
        batch: AttentionBatch,
        group: GroupBatch,
        before_cache: Callable[[], None] | None,
    ) -> Tensor:
        """Change the rows' states by this step's tokens and ask them, project back to [T, C].

        Returns what this rank's heads add to the sum over ranks. `before_cache` runs before the
        layer touches the pool of states.
        """
        ops, form = self._ops, self._form
        channels_TX = ops.linear(x_TC, self.inputs)
        decay_TV, beta_TV = ops.linear(x_TC, self.rates).split(form.num_value_heads, dim=1)
        steps_TV = functional.softplus(decay_TV.float() + self.step_bias_V)
        if before_cache is not None:
            before_cache()

        out_TVE = ops.gated_delta(
            DeltaInputs(
                channels_TX=channels_TX,
                taps_XK=self.taps_X1K.squeeze(1),
                decays_TV=-self.decay_log_V.exp() * steps_TV,
                betas_TV=beta_TV.sigmoid().float(),
            ),
            group.pool,
            self.layer_in_group,
            group.block_tables_RN,
            batch.rows.sequences,
            form,
            page_size=group.page_size,
        )
        normed_TVE = self.norm(out_TVE.flatten(0, 1)).view_as(out_TVE)
        gate_TVE = functional.silu(ops.linear(x_TC, self.gate).float()).view(out_TVE.shape)
        return ops.linear((normed_TVE * gate_TVE).to(x_TC.dtype).flatten(1), self.output)

    def _channel_counts(self) -> tuple[int, int, int]:
        """Channels of queries, of keys and of values."""
        keys = self._form.num_key_heads * self._form.key_dim
        return keys, keys, self._form.num_value_heads * self._form.value_dim

    def _value_heads(self) -> range:
        per_key = self.spec.form.values_per_key
        return range(self._key_heads.start * per_key, self._key_heads.stop * per_key)


def _key_heads(spec: GatedDeltaSpec, share: RankShare) -> range:
    """The key heads of a rank. Raises ConfigError if they cannot be divided evenly."""
    num_heads = spec.form.num_key_heads
    if num_heads % share.size:
        raise ConfigError(
            f"parallel.tp is {share.size}; {num_heads} key heads of layers that keep states cannot "
            f"be divided among so many ranks. Set parallel.tp to a divisor of {num_heads}."
        )
    return share.kv_heads(num_heads)


def _empty(shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape, device=device, dtype=dtype), requires_grad=False)
