"""Weights of a rank that sleeps: a copy in host memory, while their device has none."""

from collections.abc import Iterable

import torch
from torch import Tensor, UntypedStorage

from raydix.errors import ConfigError


class ParkedWeights:
    """Owns: the copies in host memory of storages that their device has given up.

    Whole storages go and come back in place, so that every tensor and every view of them, whoever
    holds it, is as before. Only their addresses differ, which captured graphs alone remember.
    """

    def __init__(self, tensors: Iterable[Tensor], device: torch.device) -> None:
        """`tensors`: those to park that are on `device`; several may share a storage."""
        self._tensors = [tensor for tensor in tensors if tensor.device.type == device.type]
        self._device = device
        self._copies: list[tuple[UntypedStorage, UntypedStorage]] = []
        """Each storage that is parked, empty, and its copy."""

    @property
    def held_bytes(self) -> int:
        """What the weights take of their device now."""
        return sum(storage.nbytes() for storage in self._storages())

    def park(self) -> None:
        """Copy the weights to host memory and free them. No work that reads them may be under way.

        The second time nothing happens.
        """
        if self._copies:
            return
        for storage in self._storages():
            copy = UntypedStorage(storage.nbytes(), device="cpu")
            copy.copy_(storage)
            storage.resize_(0)
            self._copies.append((storage, copy))
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def bring_back(self) -> None:
        """Take device memory again and fill it. Raises ConfigError if there is none.

        Then what has come is there, and the rest can be brought by a further call.
        """
        while self._copies:
            storage, copy = self._copies[-1]
            try:
                storage.resize_(copy.nbytes())
            except torch.OutOfMemoryError as error:
                left = sum(each.nbytes() for _, each in self._copies)
                raise ConfigError(
                    f"{self._device} has no room for {left} bytes of weights ({error}). Put the "
                    "engine that uses it to sleep first: raydix sleep NAME --weights."
                ) from error
            storage.copy_(copy)
            self._copies.pop()

    def _storages(self) -> list[UntypedStorage]:
        """The storages that can be freed: those in shared or mapped memory are others' as well."""
        known: dict[int, UntypedStorage] = {}
        for tensor in self._tensors:
            storage = tensor.untyped_storage()
            if storage.nbytes() and storage.resizable():
                known[storage._cdata] = storage
        return list(known.values())


def free_storages(tensors: Iterable[Tensor]) -> None:
    """Free what these tensors hold, whoever still refers to them; nobody may read them any more."""
    for tensor in tensors:
        storage = tensor.untyped_storage()
        if storage.nbytes() and storage.resizable():
            storage.resize_(0)
