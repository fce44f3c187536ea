"""Files that NIXL moves, for the conformance suite."""

from raydix.plugins.storage.nixl import NixlTransfers
from raydix.runtime.storage.backends.file import FileBackend
from tests.runtime.storage.stores import FileStore


class NixlStore(FileStore):
    def make(self, max_bytes: int | None = None) -> FileBackend:
        return FileBackend(
            self.root, max_bytes, transfers=NixlTransfers("POSIX", {"use_uring": "true"})
        )
