"""Ranks that meet by a store: for each other's memory, or for libraries that want a group."""

import pickle
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import PrefixStore, Store

from raydix.errors import ConfigError


class StoreGroup:
    """Swaps small values through a store, so that nothing listens and no collective is started.

    Every rank swaps as often, in the same order. Has the names that libraries call: those of an
    MPI communicator, of torch's process groups, and of torch's stores.
    """

    def __init__(self, name: str, store: Store, rank: int, size: int) -> None:
        self._store = PrefixStore(name, store)
        self._rank = rank
        self._size = size
        self._num_swaps = 0

    def rank(self) -> int:
        """The number of this process in the group."""
        return self._rank

    def size(self) -> int:
        """How many ranks there are."""
        return self._size

    def swap(self, value: Any) -> list[Any]:
        """The values of all ranks, in their order; waits for them."""
        swap = self._num_swaps
        self._num_swaps += 1
        # Pickled: the store is a file that only these ranks may open.
        self._store.set(f"{swap}.{self._rank}", pickle.dumps(value))
        return [pickle.loads(self._store.get(f"{swap}.{rank}")) for rank in range(self._size)]

    def agree(self, subject: str, obstacle: str | None) -> None:
        """Raise ConfigError on every rank if one of them has an obstacle; say whose."""
        for rank, each in enumerate(self.swap(obstacle)):
            if each is not None:
                raise ConfigError(
                    f"{subject} is unavailable: {each} (rank {rank}). Change that, or set "
                    "experts.dispatch to auto."
                )

    # As an MPI communicator.

    def Get_rank(self) -> int:
        """The number of this process in the group, by MPI's name for `rank`."""
        return self._rank

    def Get_size(self) -> int:
        """The number of ranks, by MPI's name for `size`."""
        return self._size

    def allgather(self, value: Any, into: Any = None, options: Any = None) -> Any:
        """Swap values, or fill the one list of tensors in `value`, as a process group does."""
        if into is None:
            return self.swap(value)

        (parts,), (own,) = value, into
        for part, values in zip(parts, self.swap(own.tolist()), strict=True):
            part.copy_(torch.tensor(values, dtype=own.dtype))
        return None

    # As a store.

    def set(self, key: str, value: bytes) -> None:
        """Put a value."""
        self._store.set(key, value)

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        """Wait until all keys have values."""
        self._store.wait(keys, timeout)

    def multi_get(self, keys: list[str]) -> list[bytes]:
        """The values of keys."""
        return [self._store.get(key) for key in keys]

    def delete_key(self, key: str) -> bool:
        """Keeps it: a slower rank may not have read it yet."""
        return False
