"""The weights of a rank, in memory that goes while they are parked: their copy is in the host's."""

import gc
import logging
import threading
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor, UntypedStorage
from torch.multiprocessing.reductions import StorageWeakRef

from raydix.errors import AccountingError, ConfigError
from raydix.runtime.config.capacity import format_bytes
from raydix.runtime.tiers.memory_region import MemoryRegion, definite, make_region

logger = logging.getLogger(__name__)

_PORTABLE = 1  # cudaHostRegisterPortable
_PIECE_BYTES = 256 << 20
"""A piece of weights gets as large, beside which nothing is there twice, and no larger without need
for it: one of them is copied while memory is mapped for the next."""
_ALIGNMENT_BYTES = 512
"""The alignment of each tensor, as torch's own."""


class ParkedWeights:
    """Owns: the memory of weights on their device, and the copies of those that have none there.

    Every tensor, whoever holds it, is the same before and after. Tensors of shared or mapped memory
    are left alone: they are others' as well.
    """

    def __init__(self, tensors: Iterable[Tensor], device: torch.device) -> None:
        """Move those of the tensors that are on `device` to memory that can go.

        Several may be parts of one storage. Nobody may hold another view of any: AccountingError.
        """
        self._device = device = definite(device)
        self._tensors = [tensor for tensor in tensors if tensor.device.type == device.type]
        self._pieces = [_Piece(storages, device) for storages in _batches(_storages(self._tensors))]
        self._dropping: threading.Thread | None = None
        """The thread that lets go of copies which are needed no more."""

    @property
    def held_bytes(self) -> int:
        """What the weights take of their device now."""
        return sum(piece.num_bytes for piece in self._pieces if piece.region.is_taken)

    @property
    def regions(self) -> Sequence[MemoryRegion]:
        """The memory on their device."""
        return [piece.region for piece in self._pieces]

    @property
    def addresses(self) -> tuple[int, ...]:
        """Where all of the weights are now, also those that are others' as well."""
        return tuple(tensor.data_ptr() for tensor in self._tensors)

    def park(self) -> None:
        """Copy the weights to host memory and free them. No work that reads them may be under way.

        The second time nothing happens.
        """
        if self._dropping is not None:
            self._dropping.join()
        for piece in self._pieces:
            piece.park()

    def bring_back(self) -> None:
        """Take device memory again and fill it. Raises ConfigError if there is none.

        Then what has come is there, and the rest can be brought by a further call.
        """
        parked = [piece for piece in self._pieces if piece.copy is not None]
        copies: list[_HostCopy] = []
        try:
            for piece in parked:
                copies.append(piece.bring_back())
        except torch.OutOfMemoryError as error:
            left = sum(each.num_bytes for each in parked[len(copies) :])
            raise ConfigError(
                f"{self._device} has no room for {left} bytes of weights ({error}). Put the "
                "engine that uses it to sleep first: raydix sleep NAME --weights."
            ) from error
        finally:
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)
            self._drop(copies)

    def _drop(self, copies: list["_HostCopy"]) -> None:
        """Let go of copies in a thread, as nobody waits for that."""
        if copies:
            self._dropping = threading.Thread(
                target=_drop_all, args=(copies, self._device), name="drop-parked", daemon=True
            )
            self._dropping.start()


class _Piece:
    """Some storages side by side in one region, and their copy while that has no memory."""

    def __init__(self, storages: Sequence["_Storage"], device: torch.device) -> None:
        starts, end = [], 0
        for each in storages:
            starts.append(end)
            end += -(-each.num_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        self.num_bytes = end
        self.region = make_region(end, device)
        self.copy: _HostCopy | None = None
        for each, start in zip(storages, starts, strict=True):
            each.move(self.region.bytes, start)
        if device.type == "cuda":
            # What they took goes to the device, and not to whoever asks torch next.
            torch.cuda.empty_cache()

    def park(self) -> None:
        """Copy all of it to the host, and give the memory back."""
        if self.copy is not None:
            return
        copy = _HostCopy(self.num_bytes, self.region.bytes.device)
        copy.bytes.copy_(self.region.bytes)
        self.region.give_back()
        self.copy = copy

    def bring_back(self) -> "_HostCopy":
        """Take memory and enqueue the copy to it. Returns what is read until that has ended."""
        copy = self.copy
        assert copy is not None, "it was parked"
        self.region.take_again()
        self.region.bytes.copy_(copy.bytes, non_blocking=True)
        self.copy = None
        return copy


class _Storage:
    """A storage that weights have now, and all of the tensors that are parts of it."""

    def __init__(self, storage: UntypedStorage) -> None:
        self._storage: UntypedStorage | None = storage
        self.num_bytes = storage.nbytes()
        self._tensors: list[Tensor] = []

    def add(self, tensor: Tensor) -> None:
        """Note one more part."""
        self._tensors.append(tensor)

    def move(self, target: Tensor, start: int) -> None:
        """Have all of it, and so its tensors, from `start` on in these bytes instead."""
        storage, self._storage = self._storage, None
        assert storage is not None, "a storage is moved once"
        former = torch.empty(0, dtype=torch.uint8, device=target.device).set_(storage)  # type: ignore[call-overload]
        target[start : start + self.num_bytes].copy_(former)
        for tensor in self._tensors:
            offset = start // tensor.dtype.itemsize + tensor.storage_offset()
            shape, stride = tensor.shape, tensor.stride()
            with torch.no_grad():
                tensor.set_(target.untyped_storage(), offset, shape, stride)  # type: ignore[call-overload]

        left = StorageWeakRef(storage)
        del storage, former
        if not left.expired():
            gc.collect()
        if not left.expired():
            raise AccountingError(
                f"{self.num_bytes} bytes of weights are moved, and somebody holds a view of where "
                f"they were: one of the shapes {[list(each.shape) for each in self._tensors]}"
            )


class _HostCopy:
    """Owns: memory of the host that the device copies from at full speed."""

    def __init__(self, num_bytes: int, device: torch.device) -> None:
        self.bytes = torch.empty(num_bytes, dtype=torch.uint8)
        self._is_registered = False
        if device.type == "cuda":
            torch.cuda.set_device(device)
            pointer = self.bytes.data_ptr()
            status = torch.cuda.cudart().cudaHostRegister(pointer, num_bytes, _PORTABLE)
            self._is_registered = int(status) == 0
            if not self._is_registered:
                logger.warning(
                    "%s of parked weights come back slowly: cudaHostRegister returned %s",
                    format_bytes(num_bytes),
                    status,
                )

    def close(self) -> None:
        """Give the memory back; no copy may be under way."""
        if self._is_registered:
            torch.cuda.cudart().cudaHostUnregister(self.bytes.data_ptr())
            self._is_registered = False
        self.bytes = torch.empty(0, dtype=torch.uint8)


def _drop_all(copies: list[_HostCopy], device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.set_device(device)
    while copies:
        copies.pop().close()


def _storages(tensors: Iterable[Tensor]) -> list[_Storage]:
    """The storages that can be freed, in order, with their tensors."""
    known: dict[int, _Storage] = {}
    seen: set[int] = set()
    for tensor in tensors:
        storage = tensor.untyped_storage()
        if storage.nbytes() and storage.resizable() and id(tensor) not in seen:
            seen.add(id(tensor))
            known.setdefault(storage._cdata, _Storage(storage)).add(tensor)
    return list(known.values())


def _batches(storages: Sequence[_Storage]) -> Iterator[list[_Storage]]:
    """Storages that go side by side into a region: as many as fill it, or one that is larger."""
    batch: list[_Storage] = []
    for each in storages:
        if batch and sum(other.num_bytes for other in batch) + each.num_bytes > _PIECE_BYTES:
            yield batch
            batch = []
        batch.append(each)
    if batch:
        yield batch


def free_storages(tensors: Iterable[Tensor]) -> None:
    """Free what these tensors hold, whoever still refers to them; nobody may read them any more."""
    for tensor in tensors:
        storage = tensor.untyped_storage()
        if storage.nbytes() and storage.resizable():
            storage.resize_(0)
