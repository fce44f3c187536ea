"""The operations of a model behind one protocol: plain PyTorch, or Triton where there is a GPU.

Legend: T tokens of the step, R rows (requests), C hidden, I twice the intermediate size, O outputs,
X heads of queries, keys and values x D, Q query heads, H KV heads, D head dim, P pages, L layers of
the KV group, S tokens per page, N pages of a block table, E experts, K experts per token, V
vocabulary. In routes R are entries.
"""

import importlib.util
import logging
from collections.abc import Collection, Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from raydix.kernels.attention.expanded_latents import expanded_latent_attention
from raydix.kernels.attention.form import AttentionForm
from raydix.kernels.attention.rows import AttentionRows, DecodeRows, PrefillRow, cut_rows
from raydix.kernels.dense.glu_form import GluForm
from raydix.kernels.kv_cache.rotation import QkNorm, RopeTables
from raydix.kernels.moe.routing import GroupLimitedRouting
from raydix.kernels.reference import (
    activation,
    expert_routes,
    experts,
    gated_delta,
    kv_write,
    latent_attention,
    norm,
    packed_rows,
    paged_attention,
    products,
    sampling,
    token_mask,
)
from raydix.kernels.sampling.columns import SamplingColumns
from raydix.kernels.state.delta_form import DeltaForm
from raydix.kernels.state.delta_inputs import DeltaInputs
from raydix.kernels.weights.linear_weight import LinearWeight

logger = logging.getLogger(__name__)

_TRITON_DTYPES = (torch.bfloat16, torch.float32)
_TRITON_VERSIONS = ("3.6", "3.7", "3.8")
"""Triton's versions in torch 2.11 to 2.14. Gluon, in which some kernels are written, varies."""
_MAX_HEAD_DIM = 512
"""The widest heads of which shared memory holds two stages of keys and values."""
_ALIGNMENT_BYTES = 16
"""The size of which rows of experts' weights are multiples, as tensor maps demand."""
_EXPERT_ROWS = 8
"""The number of rows by which the gate and up rows of experts alternate."""


class ModelOps(Protocol):
    """The operations that the model calls. Each rounds where its twin in `reference` rounds.

    None waits for the device, but for some twins: `fused_experts`, past DENSE_EXPERT_TOKENS tokens,
    and the samplers make the host wait.
    """

    @property
    def is_capturable(self) -> bool:
        """May a step be captured in a CUDA graph?"""

    @property
    def has_fixed_order(self) -> bool:
        """Does a token get the same bits, whatever else is in the step?"""

    @property
    def extension_tokens(self) -> int:
        """Tokens per tile of `extensions_4Y`, and of captured steps that extend a prefix."""

    @property
    def tile_tokens(self) -> int:
        """The most tokens in a tile of `AttentionRows.tiles_X4`."""

    def linear(self, x_TC: Tensor, weight: LinearWeight) -> Tensor:
        """Multiply as `torch.nn.functional.linear` does, or as its twin does for what is no float.

        Those are `reference.scaled_linear` in blocks, and `reference.int4_linear` of four bits.
        """

    def linear_summands(self, x_TC: Tensor, weight: LinearWeight) -> Tensor:
        """`linear`, or float32 summands of it, [S, T, O].

        For `rms_norm`, `glu` and `rotate_and_write_kv` alone, which add them up in their order,
        and round the sum where `linear` does.
        """

    def rms_norm(
        self, x_TC: Tensor, weight_C: Tensor, eps: float, *, residual_TC: Tensor | None = None
    ) -> Tensor:
        """Normalise by the root mean square, as `reference.norm.rms_norm` does."""

    def glu(self, gate_up_TI: Tensor, form: GluForm) -> Tensor:
        """Multiply the activated gate by up, as `reference.activation.glu` does."""

    def rotate_and_write_kv(
        self,
        qkv_TX: Tensor,
        rope: RopeTables,
        norm: QkNorm | None,
        pool_PLH2SD: Tensor,
        layer: int,
        cells_T: Tensor,
        *,
        kv_scales_2H: Tensor | None = None,
    ) -> Tensor:
        """Rotate and cache as `reference.kv_write.rotate_and_write_kv` does."""

    def sample_whole(self, logits_RV: Tensor, columns: SamplingColumns) -> Tensor:
        """Sample from rows that do not cut, as `reference.sampling.sample_whole` does."""

    def sample_cut(self, logits_RV: Tensor, columns: SamplingColumns, token_ids_R: Tensor) -> None:
        """Sample in rows that cut, as `reference.sampling.sample_cut` does, and in no other."""

    def mask_tokens(self, logits_BV: Tensor, rows_M: Tensor, words_MW: Tensor) -> None:
        """Mask tokens as `reference.token_mask.mask_tokens` does."""

    def plan_tiles(self, rows: Sequence[PrefillRow]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Cut rows into tiles: `tiles_X4` of `AttentionRows`, and extensions_4Y.

        Those are few tokens after a long prefix, whose keys are better split over programs: int64
        columns of `DecodeRows`, namely rows, first indices in T, tokens, contexts.
        """

    def paged_attention(
        self,
        q_TQD: Tensor,
        pool_PLH2SD: Tensor,
        layer: int,
        block_tables_RN: Tensor,
        rows: AttentionRows,
        form: AttentionForm,
    ) -> Tensor:
        """Attend to cached pages, as `reference.paged_attention.paged_attention` does.

        `rows.tiles_X4` has tiles of at most `tile_tokens`.
        """

    def gated_delta(
        self,
        inputs: DeltaInputs,
        pool_PLHZ: Tensor,
        layer: int,
        block_tables_RN: Tensor,
        rows: Sequence[DecodeRows],
        form: DeltaForm,
        *,
        page_size: int,
    ) -> Tensor:
        """Ask and change the states of rows, as `reference.gated_delta.gated_delta` does."""

    def write_latent(
        self, latent_TD: Tensor, pool_PLSD: Tensor, layer: int, cells_T: Tensor
    ) -> None:
        """Write latents to the cache, as `reference.latent_attention.write_latent` does."""

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
        """Attend to cached latents, as `reference.latent_attention.latent_attention` does.

        `rows.tiles_X4` has tiles of at most `tile_tokens`.
        """

    def expanded_latent_attention(
        self,
        q_TQX: Tensor,
        pool_PLSD: Tensor,
        layer: int,
        block_tables_RN: Tensor,
        rows: Sequence[PrefillRow],
        up_QYA: Tensor,
        *,
        scale: float,
        out_TQV: Tensor,
    ) -> None:
        """Attend as `expanded_latents.expanded_latent_attention` does."""

    def topk_gating(
        self, router_logits_TE: Tensor, num_experts_per_token: int, *, renormalise: bool
    ) -> tuple[Tensor, Tensor]:
        """Choose experts as `reference.experts.topk_gating` does; the ids may be int32."""

    def group_limited_gating(
        self,
        router_logits_TE: Tensor,
        correction_bias_E: Tensor | None,
        num_experts_per_token: int,
        routing: GroupLimitedRouting,
    ) -> tuple[Tensor, Tensor]:
        """Choose experts as `reference.experts.group_limited_gating` does."""

    def route_experts(
        self, ids_TK: Tensor, table_ER: Tensor, counts_E: Tensor, demand_E: Tensor
    ) -> Tensor:
        """Choose copies and count rows as `reference.expert_routes.route_experts` does."""

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
        """Run a bank's experts on the rows, as `reference.experts.fused_experts` does.

        Both weights are of one kind; in blocks, as `reference.scaled_linear.scaled_experts` does,
        of four bits, as `reference.int4_linear.int4_experts`.
        """

    def pack_rows(self, x_TC: Tensor) -> Tensor:
        """Round rows that travel, as `reference.packed_rows.pack_rows` does."""

    def restore_rows(self, packed_NB: Tensor, size: int, dtype: torch.dtype) -> Tensor:
        """Restore rows that have travelled, as `reference.packed_rows.restore_rows` does."""


class ReferenceOps:
    """`ModelOps` in plain PyTorch, on any device."""

    is_capturable = False
    has_fixed_order = False
    extension_tokens = 16
    tile_tokens = 2**30
    """The tokens of a tile: so many that a row is always one tile, whose keys are gathered once."""
    linear = staticmethod(products.linear)
    fused_experts = staticmethod(products.fused_experts)
    pack_rows = staticmethod(packed_rows.pack_rows)
    restore_rows = staticmethod(packed_rows.restore_rows)
    rms_norm = staticmethod(norm.rms_norm)
    glu = staticmethod(activation.glu)
    rotate_and_write_kv = staticmethod(kv_write.rotate_and_write_kv)
    paged_attention = staticmethod(paged_attention.paged_attention)
    gated_delta = staticmethod(gated_delta.gated_delta)
    write_latent = staticmethod(latent_attention.write_latent)
    latent_attention = staticmethod(latent_attention.latent_attention)
    expanded_latent_attention = staticmethod(expanded_latent_attention)
    topk_gating = staticmethod(experts.topk_gating)
    group_limited_gating = staticmethod(experts.group_limited_gating)
    route_experts = staticmethod(expert_routes.route_experts)
    sample_whole = staticmethod(sampling.sample_whole)
    sample_cut = staticmethod(sampling.sample_cut)
    mask_tokens = staticmethod(token_mask.mask_tokens)

    def linear_summands(self, x_TC: Tensor, weight: LinearWeight) -> Tensor:
        """Return the whole product as its only summand; see `ModelOps.linear_summands`."""
        return self.linear(x_TC, weight)

    def plan_tiles(self, rows: Sequence[PrefillRow]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Cut rows into tiles, as `ModelOps.plan_tiles` says; there are no extensions."""
        return cut_rows(rows, self.tile_tokens), np.empty((4, 0), dtype=np.int64)


class ChooseOps(Protocol):
    """Chooses operations as `choose_ops` does."""

    def __call__(
        self,
        device: torch.device,
        dtype: torch.dtype,
        *,
        head_counts: Collection[tuple[int, int]],
        head_dims: Collection[int],
        expert_sizes: Sequence[int],
    ) -> ModelOps: ...


def choose_ops(
    device: torch.device,
    dtype: torch.dtype,
    *,
    head_counts: Collection[tuple[int, int]],
    head_dims: Collection[int],
    expert_sizes: Sequence[int],
) -> ModelOps:
    """The fastest operations for a model of these shapes.

    `head_counts`: query and KV heads of its layers, which may differ; so may `head_dims`, those of
    cached keys. `expert_sizes`: hidden and intermediate size of its experts; empty if it has none.
    Where a GPU has to do without Triton, the log says why.
    """
    if device.type != "cuda":
        return ReferenceOps()
    return choose_gpu_ops(
        device, dtype, head_counts=head_counts, head_dims=head_dims, expert_sizes=expert_sizes
    )


def choose_gpu_ops(
    device: torch.device,
    dtype: torch.dtype,
    *,
    head_counts: Collection[tuple[int, int]],
    head_dims: Collection[int],
    expert_sizes: Sequence[int],
) -> ModelOps:
    """`choose_ops` of a GPU, or of the meta device where kernels are compiled for one."""
    obstacle = triton_obstacle(dtype, head_dims, expert_sizes)
    if obstacle is not None:
        logger.warning("%s runs plain PyTorch operations, which are slow: %s", device, obstacle)
        return ReferenceOps()
    # Imported here: Triton is there on machines with a GPU alone.
    from raydix.kernels.triton_ops import TritonOps

    return TritonOps(device, dtype, head_counts=head_counts)


def import_gpu_ops() -> None:
    """Import what `choose_ops` would on a GPU, if it is there, before any kernel is launched."""
    if importlib.util.find_spec("triton") is not None:
        importlib.import_module("raydix.kernels.triton_ops")
        importlib.import_module("raydix.kernels.compiling.variants").agree_on_keys()


def _triton_version() -> str:
    # The module's own: nightly builds have other names as packages.
    return str(importlib.import_module("triton").__version__)


def triton_obstacle(
    dtype: torch.dtype, head_dims: Collection[int], expert_sizes: Sequence[int]
) -> str | None:
    """Why Triton's operations cannot serve; None if they can."""
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed."
    installed = _triton_version()
    if ".".join(installed.split(".")[:2]) not in _TRITON_VERSIONS:
        return f"triton is {installed}; the kernels know {', '.join(_TRITON_VERSIONS)}."
    if dtype not in _TRITON_DTYPES:
        return f"model.dtype is {dtype}; the Triton kernels know bfloat16 and float32."

    if max(head_dims, default=0) > _MAX_HEAD_DIM:
        return f"heads are {max(head_dims)} wide; the Triton kernels know {_MAX_HEAD_DIM} or less."
    if any(
        size * dtype.itemsize % _ALIGNMENT_BYTES or size % _EXPERT_ROWS for size in expert_sizes
    ):
        return (
            f"experts are {tuple(expert_sizes)} wide; the Triton kernels need multiples of "
            f"{_EXPERT_ROWS} and rows of multiples of {_ALIGNMENT_BYTES} bytes."
        )
    return None
