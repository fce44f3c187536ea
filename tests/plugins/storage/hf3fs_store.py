"""The 3FS backend for the conformance suite, on the emulator or on a mount."""

import os
from pathlib import Path
from typing import Any

from raydix.ids import PageKey
from raydix.plugins.storage.hf3fs import Hf3fsBackend
from raydix.plugins.storage.slab import SlabName, SlabPlace, extent_bytes_for
from raydix.runtime.storage.backend import StorageBackend
from tests.plugins.storage.hf3fs_emulator import UsrbioEmulator
from tests.runtime.storage.stores import NAMESPACE, Store, make_key


class Hf3fsStore(Store):
    is_bounded = True
    is_shared = False

    def __init__(self, path: Path, mount: Path | None = None) -> None:
        """`mount`: of the emulator; None: `path` is on a real one."""
        self.path = path
        self.mount = mount
        self.backend: Hf3fsBackend | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"backend": None}

    def make(self, max_bytes: int | None = None) -> Hf3fsBackend:
        usrbio = None if self.mount is None else UsrbioEmulator(self.mount)
        self.backend = Hf3fsBackend(self.path, max_bytes, usrbio)
        return self.backend

    def _find(self, name: int) -> tuple[SlabName, SlabPlace | None]:
        assert self.backend is not None
        slab_name = SlabName(NAMESPACE.digest, 0, PageKey(make_key(name)))
        return slab_name, self.backend._slabs.find(slab_name)

    def raw(self, name: int) -> bytes | None:
        _, place = self._find(name)
        if place is None:
            return None
        return (self.path / f"slots-{place.extent_bytes}.slab").read_bytes()[place.offset :][
            : place.size_bytes
        ]

    def set_raw(self, name: int, data: bytes) -> None:
        slab_name, place = self._find(name)
        assert place is not None
        assert self.backend is not None
        assert extent_bytes_for(len(data) or 1) == place.extent_bytes
        self.backend._slabs._index.add(
            [(slab_name, SlabPlace(place.extent_bytes, place.extent, len(data)))]
        )
        self.backend._room.add({str(slab_name): len(data)})
        with open(self.path / f"slots-{place.extent_bytes}.slab", "r+b") as file:
            os.pwrite(file.fileno(), data, place.offset)

    def check(self, backend: StorageBackend) -> None:
        assert isinstance(backend, Hf3fsBackend)
        backend.check()
