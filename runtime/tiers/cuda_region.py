"""Memory of a CUDA device in a range of addresses of its own, which stays when the memory goes."""

import weakref
from typing import Any

import torch
from torch import Tensor

from raydix.runtime.tiers.cuda_mapping import CudaMapping


class CudaRegion:
    """A `MemoryRegion` that keeps its place."""

    keeps_place = True

    def __init__(self, num_bytes: int, device: torch.device) -> None:
        self._mapping = CudaMapping(num_bytes, device)
        self._mapping.map()
        self._bytes = _as_tensor(self._mapping, num_bytes, device)

    @property
    def bytes(self) -> Tensor:
        """All of it."""
        return self._bytes

    @property
    def is_taken(self) -> bool:
        """Whether memory is mapped."""
        return self._mapping.is_mapped

    @property
    def mapped_bytes(self) -> int:
        """What is mapped, which torch knows nothing of."""
        return self._mapping.size if self.is_taken else 0

    def give_back(self) -> None:
        """Unmap the memory and free it; whoever reads it meanwhile ends with an error."""
        self._mapping.unmap()

    def take_again(self) -> None:
        """Map memory at the same addresses."""
        self._mapping.map()


class _Range:
    """What tells torch of a mapping. Torch holds it for as long as a tensor is there."""

    def __init__(self, mapping: CudaMapping, num_bytes: int) -> None:
        self.__cuda_array_interface__: dict[str, Any] = {
            "shape": (num_bytes,),
            "typestr": "|u1",
            "data": (mapping.address, False),
            "version": 2,
        }


def _as_tensor(mapping: CudaMapping, num_bytes: int, device: torch.device) -> Tensor:
    """The first bytes of a mapping, which ends with the last tensor of them."""
    owner = _Range(mapping, num_bytes)
    # When the process ends the driver frees all by itself, and may be gone before this is called.
    weakref.finalize(owner, mapping.close).atexit = False
    tensor = torch.as_tensor(owner, device=device)
    if tensor.data_ptr() != mapping.address:
        raise RuntimeError(
            f"torch has copied mapped memory from {mapping.address} to {tensor.data_ptr()}"
        )
    return tensor
