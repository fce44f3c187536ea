"""Memory of a device that can be given back and taken again, at the same place where it can be."""

import mmap
from typing import Protocol

import torch
from torch import Tensor


class MemoryRegion(Protocol):
    """Some bytes of a device.

    Owns: their memory, while it is taken, as it is from the start. Whoever holds a tensor of it
    reads nothing while it is given back, and finds any content when it has been taken again.
    """

    keeps_place: bool
    """Whether the bytes have the same address each time, so that captured graphs may read them."""

    @property
    def bytes(self) -> Tensor:
        """All of it, uint8."""

    @property
    def is_taken(self) -> bool:
        """Whether there is memory behind it."""

    @property
    def mapped_bytes(self) -> int:
        """What it takes of the device and torch does not count as its own."""

    def give_back(self) -> None:
        """Free the memory, once what is enqueued has ended. The second time nothing happens."""

    def take_again(self) -> None:
        """Have memory again. Raises torch.OutOfMemoryError. The second time nothing happens."""


def definite(device: torch.device) -> torch.device:
    """The device with its index, which other threads need to be on it: of cuda the current one."""
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device


def make_region(num_bytes: int, device: torch.device) -> MemoryRegion:
    """One of so many bytes, at least one, that keeps its place if the device can do that.

    On cuda the calling thread is on the device. Raises torch.OutOfMemoryError.
    """
    if device.type == "cpu":
        return HostRegion(num_bytes)
    if device.type == "cuda":
        device = definite(device)
        # Imported here: it needs the driver.
        from raydix.runtime.tiers.cuda_mapping import can_map
        from raydix.runtime.tiers.cuda_region import CudaRegion

        if can_map(device):
            return CudaRegion(num_bytes, device)
    return MovingRegion(num_bytes, device)


class HostRegion:
    """A `MemoryRegion` of the host: the system takes its pages away, and gives zeroed ones."""

    keeps_place = True
    mapped_bytes = 0

    def __init__(self, num_bytes: int) -> None:
        self._memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._bytes = torch.frombuffer(self._memory, dtype=torch.uint8)
        self.is_taken = True

    @property
    def bytes(self) -> Tensor:
        """All of it."""
        return self._bytes

    def give_back(self) -> None:
        """Free the pages; whoever reads them finds zeros."""
        if self.is_taken:
            self._memory.madvise(mmap.MADV_DONTNEED)
            self.is_taken = False

    def take_again(self) -> None:
        """Pages come as they are written."""
        self.is_taken = True


class MovingRegion:
    """A `MemoryRegion` of torch's allocator: each tensor finds it again, and no captured graph."""

    keeps_place = False
    mapped_bytes = 0

    def __init__(self, num_bytes: int, device: torch.device) -> None:
        self._num_bytes = num_bytes
        self._bytes = torch.empty(num_bytes, dtype=torch.uint8, device=device)

    @property
    def bytes(self) -> Tensor:
        """All of it."""
        return self._bytes

    @property
    def is_taken(self) -> bool:
        """Whether its storage has memory."""
        return self._bytes.untyped_storage().nbytes() > 0

    def give_back(self) -> None:
        """Free the storage, of which every tensor and view is one still.

        On the host it stays if numpy has its address.
        """
        storage = self._bytes.untyped_storage()
        if self.is_taken and storage.resizable():
            storage.resize_(0)
            if self._bytes.device.type == "cuda":
                torch.cuda.empty_cache()

    def take_again(self) -> None:
        """Give the storage other memory."""
        if not self.is_taken:
            self._bytes.untyped_storage().resize_(self._num_bytes)
