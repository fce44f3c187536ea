"""Collectives through torch's process groups, without its global state.

Each rank holds a group object of its own, so that the ranks may be processes or threads of one.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.distributed.distributed_c10d import (
    AllgatherOptions,
    AllreduceOptions,
    ProcessGroupGloo,
    Store,
)

from raydix.moe.dispatch.gloo_group import connect_gloo
from raydix.moe.dispatch.nccl_group import connect_nccl, end_nccl

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import ProcessGroupNCCL


class GlooCollectives:
    """`Collectives` on the cpu, over sockets of the loopback device.

    Tensors of another device go through the host's memory, which waits for the device.
    """

    is_capturable = False

    def __init__(self, store: Store, rank: int, size: int) -> None:
        """Connect; waits for every rank."""
        self.rank = rank
        self.size = size
        self._group: ProcessGroupGloo | None = connect_gloo(store, rank, size)

    def sum(self, part: Tensor) -> Tensor:
        """Sum the parts in host memory."""
        summed = part.cpu()
        self._open_group().allreduce([summed]).wait()
        return summed.to(part.device)

    def gather(self, part_RV: Tensor) -> Tensor:
        """Gather the columns in host memory."""
        own_RV = part_RV.cpu()
        all_XV = own_RV.new_empty(self.size * own_RV.shape[0], own_RV.shape[1])
        self._open_group()._allgather_base(all_XV, own_RV).wait()
        return beside_each_other(all_XV, self.size).to(part_RV.device)

    def close(self) -> None:
        """End this rank's connections, which ends its peers' waits."""
        self._group = None

    def _open_group(self) -> ProcessGroupGloo:
        if self._group is None:
            raise RuntimeError("the collectives of this rank are closed")
        return self._group


class NcclCollectives:
    """`Collectives` on the current CUDA device, by kernels on the current stream.

    Each rank has a process of its own: a thread that loads a kernel waits for those of its device
    to end, and keeps the other threads from starting what these wait for.
    """

    is_capturable = True

    def __init__(self, store: Store, rank: int, size: int, device: torch.device) -> None:
        """Connect; waits for every rank. The calling thread is on `device`."""
        self.rank = rank
        self.size = size
        self._group: ProcessGroupNCCL | None = connect_nccl(store, rank, size)

        # On the current stream, as every other operation of the model.
        self._sum_options = AllreduceOptions()
        self._sum_options.asyncOp = False
        self._gather_options = AllgatherOptions()
        self._gather_options.asyncOp = False

        # Ranks connect at their first operation, which must not be a captured one.
        self.sum(torch.zeros(1, device=device))
        self.gather(torch.zeros(1, 1, device=device))
        torch.cuda.synchronize(device)

    def sum(self, part: Tensor) -> Tensor:
        """Sum the parts on the devices, in place."""
        self._open_group().allreduce([part], self._sum_options)
        return part

    def gather(self, part_RV: Tensor) -> Tensor:
        """Gather the columns on the devices."""
        all_XV = part_RV.new_empty(self.size * part_RV.shape[0], part_RV.shape[1])
        self._open_group()._allgather_base(all_XV, part_RV, self._gather_options)
        return beside_each_other(all_XV, self.size)

    def close(self) -> None:
        """End the process group, once."""
        group, self._group = self._group, None
        if group is not None:
            end_nccl(group)

    def _open_group(self) -> "ProcessGroupNCCL":
        if self._group is None:
            raise RuntimeError("the collectives of this rank are closed")
        return self._group


def beside_each_other(all_XV: Tensor, size: int) -> Tensor:
    """The rows of all ranks, one rank behind another, as one contiguous [R, size x V]."""
    num_rows, num_columns = all_XV.shape[0] // size, all_XV.shape[1]
    by_rank = all_XV.view(size, num_rows, num_columns)
    return by_rank.transpose(0, 1).reshape(num_rows, size * num_columns)
