"""Tensors of memory that somebody else owns."""

import torch
from torch import Tensor


def lent(tensor: Tensor, device: torch.device | None = None) -> Tensor:
    """The same memory as another tensor, which does not keep it. Whoever owns it has to.

    `device`: the one that is to read it, if it is not the tensor's own. The tensor is dense.
    """
    device = tensor.device if device is None else device
    if not tensor.numel():
        # Memory of no bytes has no address.
        return torch.empty_like(tensor, device=device)
    storage = torch._C._construct_storage_from_data_pointer(
        tensor.data_ptr(), device, tensor.nbytes
    )
    alias = torch.empty(0, dtype=tensor.dtype, device=device)
    return alias.set_(storage, 0, tensor.shape, tensor.stride())
