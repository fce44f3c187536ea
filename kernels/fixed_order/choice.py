"""Which operations of a fixed order a device has."""

import logging
from collections.abc import Collection, Sequence

import torch

from raydix.kernels.fixed_order.reference_ops import FixedReferenceOps
from raydix.kernels.ops import ModelOps, triton_obstacle

logger = logging.getLogger(__name__)


def choose_fixed_ops(
    device: torch.device,
    dtype: torch.dtype,
    *,
    head_counts: Collection[tuple[int, int]],
    head_dims: Collection[int],
    expert_sizes: Sequence[int],
) -> ModelOps:
    """Operations as `choose_ops` chooses them, that have a fixed order."""
    if device.type != "cuda":
        return FixedReferenceOps()
    return choose_fixed_gpu_ops(
        device, dtype, head_counts=head_counts, head_dims=head_dims, expert_sizes=expert_sizes
    )


def choose_fixed_gpu_ops(
    device: torch.device,
    dtype: torch.dtype,
    *,
    head_counts: Collection[tuple[int, int]],
    head_dims: Collection[int],
    expert_sizes: Sequence[int],
) -> ModelOps:
    """`choose_gpu_ops` of operations that have a fixed order."""
    obstacle = triton_obstacle(dtype, head_dims, expert_sizes)
    if obstacle is not None:
        logger.warning("%s runs plain PyTorch operations, which are slow: %s", device, obstacle)
        return FixedReferenceOps()
    # Imported here: Triton is there on machines with a GPU alone.
    from raydix.kernels.fixed_order.triton_ops import FixedTritonOps

    return FixedTritonOps(device, dtype, head_counts=head_counts)
