"""Small sums by one kernel that reads the peers' memory over NVLink.

A step of few tokens is a CUDA graph of short kernels, in which NCCL's sums would be the long ones.
"""

import math

import torch
from torch import Tensor
from torch.distributed import Store

from raydix.kernels.device.symmetric_group import name_group
from raydix.runtime.model.collectives.process_groups import NcclCollectives

MAX_SUM_BYTES = 512 * 1024
"""Larger sums are NCCL's: each rank reads every peer's part whole, where NCCL divides the work."""
_ALIGNMENT_BYTES = 16
_GROUP_NAME = "raydix-sums"


class SymmetricCollectives:
    """`Collectives` whose small sums are one kernel; NCCL does the rest.

    The ranks are processes, each of which sees all devices. NVLink multicast is not used.
    """

    is_capturable = True

    def __init__(
        self, store: Store, nccl: NcclCollectives, device: torch.device, dtype: torch.dtype
    ) -> None:
        """Map the peers' memory; waits for every rank. Sums of another dtype are NCCL's."""
        # Imported here: only builds of torch for CUDA can use it.
        from torch.distributed import _symmetric_memory as symmetric_memory

        self.rank = nccl.rank
        self.size = nccl.size
        self._nccl = nccl

        self._group = name_group(_GROUP_NAME, store, nccl.rank, nccl.size)
        self._buffer = symmetric_memory.empty(
            MAX_SUM_BYTES // dtype.itemsize, dtype=dtype, device=device
        )
        self._handle = symmetric_memory.rendezvous(self._buffer, _GROUP_NAME)

    def sum(self, part: Tensor) -> Tensor:
        """Sum a small part by a kernel that reads the peers' memory, a large one by NCCL."""
        if not self._is_small(part):
            return self._nccl.sum(part)

        buffer = self._buffer[: part.numel()].view(part.shape)
        summed: Tensor = torch.ops.symm_mem.one_shot_all_reduce_copy(
            buffer, part, "sum", _GROUP_NAME
        )
        return summed

    def gather(self, part_RV: Tensor) -> Tensor:
        """Gather the columns by NCCL."""
        return self._nccl.gather(part_RV)

    def close(self) -> None:
        """End the process group. A kernel that waits for a peer ends with the process alone."""
        self._nccl.close()

    def _is_small(self, part: Tensor) -> bool:
        num_bytes = math.prod(part.shape) * part.itemsize
        return (
            part.dtype == self._buffer.dtype
            and 0 < num_bytes <= MAX_SUM_BYTES
            and num_bytes % _ALIGNMENT_BYTES == 0
        )
