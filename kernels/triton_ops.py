"""`ModelOps` by Triton kernels.

Legend: as in `ops`.
"""

from collections.abc import Collection, Sequence
from contextlib import nullcontext

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from raydix.kernels.attention.decode_tiles import DecodeTiles, choose_num_splits
from raydix.kernels.attention.expanded_latents import expanded_latent_attention
from raydix.kernels.attention.form import AttentionForm
from raydix.kernels.attention.latent_attention import (
    choose_latent_splits,
    latent_decode,
    latent_prefill,
)
from raydix.kernels.attention.paged_decode import PROGRAMS_PER_SM, paged_decode
from raydix.kernels.attention.paged_prefill import is_extension, paged_prefill, tile_tokens
from raydix.kernels.attention.rows import AttentionRows, DecodeRows, PrefillRow, cut_rows
from raydix.kernels.dense.activation import glu
from raydix.kernels.dense.glu_form import GluForm
from raydix.kernels.dense.norm import rms_norm
from raydix.kernels.dense.small_linear import (
    fits,
    has_tensor_cores,
    small_linear,
    small_linear_summands,
)
from raydix.kernels.device.gpu import num_sms
from raydix.kernels.device.side_stream import SideStream
from raydix.kernels.fp8.packed_rows import pack_rows, restore_rows
from raydix.kernels.fp8.scaled_experts import scaled_experts
from raydix.kernels.fp8.scaled_product import scaled_linear, scaled_summands
from raydix.kernels.int4.int4_experts import int4_experts
from raydix.kernels.int4.int4_product import int4_linear, int4_summands
from raydix.kernels.kv_cache.kv_write import rotate_and_write_kv
from raydix.kernels.kv_cache.latent_write import write_latent
from raydix.kernels.moe.expert_biases import biases_of
from raydix.kernels.moe.expert_routes import route_experts
from raydix.kernels.moe.grouped_gemm import fused_experts
from raydix.kernels.moe.topk_gating import topk_gating
from raydix.kernels.reference import experts
from raydix.kernels.sampling.sampler import sample_cut, sample_whole
from raydix.kernels.sampling.token_mask import mask_tokens
from raydix.kernels.state.gated_delta import gated_delta
from raydix.kernels.weights.int4_weight import Int4Weight
from raydix.kernels.weights.linear_weight import LinearWeight, int4_bank, scaled_bank
from raydix.kernels.weights.scaled_weight import ScaledWeight

_EXTENSION_TILE_ROWS = 64
"""The query rows of an extension tile: its tokens times the query heads of a KV head."""


class TritonOps:
    """`ModelOps` for one CUDA device and model. All functions may be captured in a CUDA graph."""

    is_capturable = True
    has_fixed_order = False
    rotate_and_write_kv = staticmethod(rotate_and_write_kv)
    gated_delta = staticmethod(gated_delta)
    write_latent = staticmethod(write_latent)
    expanded_latent_attention = staticmethod(expanded_latent_attention)
    topk_gating = staticmethod(topk_gating)
    route_experts = staticmethod(route_experts)
    pack_rows = staticmethod(pack_rows)
    restore_rows = staticmethod(restore_rows)
    group_limited_gating = staticmethod(experts.group_limited_gating)
    sample_whole = staticmethod(sample_whole)
    sample_cut = staticmethod(sample_cut)
    mask_tokens = staticmethod(mask_tokens)

    def __init__(
        self,
        device: torch.device,
        dtype: torch.dtype,
        *,
        head_counts: Collection[tuple[int, int]],
    ) -> None:
        # Layers share the tiles of a step, so those with the largest groups bound what fits in one.
        largest_group = max(query_heads // kv_heads for query_heads, kv_heads in head_counts)
        self.tile_tokens = tile_tokens(dtype)
        self._dtype = dtype
        self._has_small_linear = has_tensor_cores(device)
        self._num_query_heads = max(query_heads for query_heads, _ in head_counts)
        self._num_sms = num_sms(device)
        self._beside = SideStream(device)
        self.extension_tokens = max(_EXTENSION_TILE_ROWS // largest_group, 1)

    def linear(self, x_TC: Tensor, weight: LinearWeight) -> Tensor:
        """Multiply by a weight and add its bias, as `ModelOps.linear` says."""
        if isinstance(weight, ScaledWeight):
            return scaled_linear(x_TC, weight)
        if isinstance(weight, Int4Weight):
            return int4_linear(x_TC, weight)
        weight_OC, bias_O = weight.matrix_OC, weight.bias_O
        if bias_O is None and self._has_small_linear and fits(x_TC, weight_OC):
            return small_linear(x_TC, weight_OC)
        return functional.linear(x_TC, weight_OC, bias_O)

    def linear_summands(self, x_TC: Tensor, weight: LinearWeight) -> Tensor:
        """Return the summands of a product, as `ModelOps.linear_summands` says."""
        if isinstance(weight, ScaledWeight):
            return scaled_summands(x_TC, weight)
        if isinstance(weight, Int4Weight):
            return int4_summands(x_TC, weight)
        weight_OC, bias_O = weight.matrix_OC, weight.bias_O
        if bias_O is None and self._has_small_linear and fits(x_TC, weight_OC):
            return small_linear_summands(x_TC, weight_OC)
        return functional.linear(x_TC, weight_OC, bias_O)

    def fused_experts(
        self,
        x_TC: Tensor,
        gate_up: LinearWeight,
        down: LinearWeight,
        weights_TK: Tensor,
        expert_ids_TK: Tensor,
        *,
        form: GluForm,
    ) -> Tensor:
        """Run a bank's experts on the rows, as `ModelOps.fused_experts` says."""
        if isinstance(gate_up, ScaledWeight) or isinstance(down, ScaledWeight):
            return scaled_experts(
                x_TC, *scaled_bank(gate_up, down), weights_TK, expert_ids_TK, form=form
            )
        if isinstance(gate_up, Int4Weight) or isinstance(down, Int4Weight):
            return int4_experts(
                x_TC, *int4_bank(gate_up, down), weights_TK, expert_ids_TK, form=form
            )
        return fused_experts(
            x_TC,
            gate_up.matrix_OC,
            down.matrix_OC,
            weights_TK,
            expert_ids_TK,
            form=form,
            biases=biases_of(gate_up, down),
        )

    def rms_norm(
        self, x_TC: Tensor, weight_C: Tensor, eps: float, *, residual_TC: Tensor | None = None
    ) -> Tensor:
        """Normalise by the root mean square, as `ModelOps.rms_norm` says."""
        return rms_norm(x_TC, weight_C, eps, residual_TC=residual_TC, dtype=self._dtype)

    def glu(self, gate_up_TI: Tensor, form: GluForm) -> Tensor:
        """Multiply the activated gate by up, as `ModelOps.glu` says."""
        return glu(gate_up_TI, form, dtype=self._dtype)

    def plan_tiles(self, rows: Sequence[PrefillRow]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Cut rows into tiles and extensions, as `ModelOps.plan_tiles` says."""
        extensions = [
            row for row in rows if is_extension(row, self._num_query_heads, self._num_sms)
        ]
        others = [
            row for row in rows if not is_extension(row, self._num_query_heads, self._num_sms)
        ]

        size = self.extension_tokens
        split = [
            (
                row.row,
                row.first_token + start,
                stop - start,
                row.context_tokens - row.num_tokens + stop,
            )
            for row in extensions
            for start in range(0, row.num_tokens, size)
            for stop in [min(start + size, row.num_tokens)]
        ]
        tiles_X4 = cut_rows(others, self.tile_tokens)
        return tiles_X4, np.array(split, dtype=np.int64).reshape(-1, 4).T

    def paged_attention(
        self,
        q_TQD: Tensor,
        pool_PLH2SD: Tensor,
        layer: int,
        block_tables_RN: Tensor,
        rows: AttentionRows,
        form: AttentionForm,
    ) -> Tensor:
        """Attend to cached pages, as `ModelOps.paged_attention` says."""
        out_TQD = torch.empty(q_TQD.shape, dtype=q_TQD.dtype, device=q_TQD.device)
        # Decodes wait for memory and prompts for the multipliers: they run side by side.
        has_both = bool(rows.decode) and rows.tiles_X4 is not None
        with self._beside.beside() if has_both else nullcontext():
            for decode in rows.decode:
                paged_decode(
                    q_TQD,
                    pool_PLH2SD,
                    layer,
                    block_tables_RN,
                    _decode_tiles(decode),
                    form=form,
                    num_splits=choose_num_splits(
                        _num_tiles(decode, q_TQD.shape[0]),
                        pool_PLH2SD.shape[2],
                        _visible_tokens(decode, form.window),
                        self._num_sms,
                        PROGRAMS_PER_SM,
                    ),
                    out_TQD=out_TQD,
                )
        if rows.tiles_X4 is not None:
            paged_prefill(
                q_TQD,
                pool_PLH2SD,
                layer,
                block_tables_RN,
                rows.tiles_X4,
                form=form,
                out_TQD=out_TQD,
            )
        if has_both:
            self._beside.join()
        return out_TQD

    def latent_attention(
        self,
        q_TQD: Tensor,
        pool_PLSD: Tensor,
        layer: int,
        block_tables_RN: Tensor,
        rows: AttentionRows,
        *,
        scale: float,
        value_dim: int,
    ) -> Tensor:
        """Attend to cached latents, as `ModelOps.latent_attention` says."""
        num_tokens, num_heads, _ = q_TQD.shape
        out_TQV = q_TQD.new_empty((num_tokens, num_heads, value_dim))
        if rows.tiles_X4 is not None:
            latent_prefill(
                q_TQD,
                pool_PLSD,
                layer,
                block_tables_RN,
                rows.tiles_X4,
                scale=scale,
                out_TQV=out_TQV,
            )

        for decode in rows.decode:
            num_splits = choose_latent_splits(
                _num_tiles(decode, num_tokens),
                decode.tokens_per_tile * num_heads,
                decode.max_context_tokens,
                self._num_sms,
                q_TQD.dtype,
            )
            latent_decode(
                q_TQD,
                pool_PLSD,
                layer,
                block_tables_RN,
                _decode_tiles(decode),
                scale=scale,
                num_splits=num_splits,
                out_TQV=out_TQV,
            )
        return out_TQV


def _num_tiles(rows: DecodeRows, num_tokens: int) -> int:
    """About how many tiles have tokens: as many as full ones would hold those of the step."""
    return min(len(rows.rows_B), -(-num_tokens // rows.tokens_per_tile))


def _visible_tokens(rows: DecodeRows, window: int | None) -> int:
    """The most keys that a tile sees."""
    if window is None:
        return rows.max_context_tokens
    return min(rows.max_context_tokens, window + rows.tokens_per_tile - 1)


def _decode_tiles(rows: DecodeRows) -> DecodeTiles:
    return DecodeTiles(
        rows_B=rows.rows_B,
        tokens_B=rows.tokens_B,
        context_tokens_B=rows.context_tokens_B,
        num_tokens_B=rows.num_tokens_B,
        tokens_per_tile=rows.tokens_per_tile,
    )
