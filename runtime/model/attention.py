"""Full attention over paged KV.

Legend: T tokens of the step, R rows, C hidden, H KV heads, Q query heads, D head dim, P pages, L layers of the group,
S slots per page, N pages of a block table.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from raydix.kernels.reference import AttentionRows, apply_rope, paged_attention, rms_norm, write_kv
from raydix.runtime.model.spec import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupBatch:
    """What one KV group contributes to a step."""

    pool_PLH2SD: Tensor
    """The cache itself; page 0 is padding."""
    block_tables_RN: Tensor
    """int32, page ids per row."""
    slot_mapping_T: Tensor
    """int64, page * S + offset where each token's keys and values go; -1: nowhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionBatch:
    """Rows of a step and, per KV group, where their keys and values lie."""

    rows: AttentionRows
    groups: tuple[GroupBatch, ...]


def linear_parameters(
    out_features: int, in_features: int, *, bias: bool, device: torch.device, dtype: torch.dtype
) -> nn.Linear:
    """An uninitialised linear layer without gradients; its weights come from the checkpoint."""
    layer: nn.Linear = nn.utils.skip_init(nn.Linear, in_features, out_features, bias=bias, device=device, dtype=dtype)
    return layer.requires_grad_(False)


class RmsNorm(nn.Module):
    """Root-mean-square norm over the last dimension."""

    def __init__(self, size: int, eps: float, *, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(size, device=device, dtype=dtype), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """Same shape out as in."""
        return rms_norm(x, self.weight, self.eps)


class FullAttention(nn.Module):
    """Grouped-query attention of one layer; `layer_in_group` is its place in the group's pool."""

    def __init__(self, spec: ModelSpec, layer_in_group: int, *, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        self.layer_in_group = layer_in_group
        self.num_heads, self.num_kv_heads, self.head_dim = spec.num_heads, spec.num_kv_heads, spec.head_dim
        self.scale = spec.head_dim**-0.5
        qkv_heads = spec.num_heads + 2 * spec.num_kv_heads
        self.qkv = linear_parameters(
            qkv_heads * spec.head_dim, spec.hidden_size, bias=spec.qkv_bias, device=device, dtype=dtype
        )
        self.output = linear_parameters(
            spec.hidden_size, spec.num_heads * spec.head_dim, bias=spec.output_bias, device=device, dtype=dtype
        )
        self.q_norm: RmsNorm | None = None
        self.k_norm: RmsNorm | None = None
        if spec.qk_norm:
            self.q_norm = RmsNorm(spec.head_dim, spec.rms_norm_eps, device=device, dtype=dtype)
            self.k_norm = RmsNorm(spec.head_dim, spec.rms_norm_eps, device=device, dtype=dtype)

    def project(self, x_TC: Tensor, rope_tables: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Return (q_TQD, k_THD, v_THD), normed and rotated."""
        qkv_TXD = self.qkv(x_TC).view(x_TC.shape[0], -1, self.head_dim)
        q_TQD, k_THD, v_THD = qkv_TXD.split((self.num_heads, self.num_kv_heads, self.num_kv_heads), dim=1)
        if self.q_norm is not None and self.k_norm is not None:
            q_TQD, k_THD = self.q_norm(q_TQD), self.k_norm(k_THD)
        return apply_rope(q_TQD, *rope_tables), apply_rope(k_THD, *rope_tables), v_THD

    def attend(self, q_TQD: Tensor, k_THD: Tensor, v_THD: Tensor, group: GroupBatch, rows: AttentionRows) -> Tensor:
        """Write this step's keys and values, attend to each row's context, project back to [T, C]."""
        write_kv(k_THD, v_THD, group.pool_PLH2SD, self.layer_in_group, group.slot_mapping_T)
        out_TQD = paged_attention(
            q_TQD, group.pool_PLH2SD, self.layer_in_group, group.block_tables_RN, rows, self.scale
        )
        return functional.linear(out_TQD.flatten(1), self.output.weight, self.output.bias)
