"""Puts any bytes in the place of a stored object under a running engine, by the protocol."""

import time
from collections.abc import Sequence

from raydix.ids import HostPageId, PageKey
from raydix.runtime.actors.supervision.spawn import ActorKind
from raydix.runtime.cache.host.pages import HostPageState
from raydix.runtime.config.kv_layout import OBJECT_HEADER_BYTES
from raydix.runtime.messages.host import ObjectStatus
from raydix.runtime.storage.backend import ObjectName, ObjectRef
from raydix.runtime.storage.worker.object_header import ObjectIdentity, fill_header
from raydix.runtime.testing.engine import InProcessEngine
from tests.exactness.poison import page_key
from tests.exactness.reference import Prompt

_DEADLINE_S = 30.0


class StoredObjects:
    """What the L3 of an idle engine holds of prompts, group 0; for reading and for replacing.

    Bytes travel by way of the arena's last pages, since some backends know no other memory; nobody
    may hold those. Not for an event loop's thread, from which backends are never called.
    """

    def __init__(self, engine: InProcessEngine) -> None:
        storage, host = (
            engine.spawner.latest(ActorKind.STORAGE),
            engine.spawner.latest(ActorKind.HOST_MEMORY),
        )
        assert storage is not None
        assert host is not None
        self._worker = storage.plain._worker
        self._host = host.plain.host
        self.backend = storage.plain.backend
        self.namespace: bytes = self._worker._namespace.digest

    def read(self, prompt: Prompt, page: int) -> bytes:
        """An object, header and all, which must be there and good."""
        ref = self._scratch(page_key(prompt, page), self._object_bytes)
        assert self.backend.batch_get_into([ref], self._deadline_s()) == [ObjectStatus.OK]
        return bytes(ref.page)

    def replace(self, prompt: Prompt, page: int, data: bytes) -> None:
        """Remove an object and store `data` under its name."""
        self.delete(prompt, page)
        ref = self._scratch(page_key(prompt, page), len(data))
        ref.page[:] = data
        assert self.backend.batch_put_from([ref], self._deadline_s()) == [ObjectStatus.OK]

    def delete(self, prompt: Prompt, page: int) -> None:
        """Remove an object, which must be there."""
        assert self.backend.delete([ObjectName(page_key(prompt, page), 0)]) == [ObjectStatus.OK]

    def signed(self, payload: bytes, key: PageKey, namespace: bytes) -> bytes:
        """An object whose header says that `payload` is the page `key` of `namespace`."""
        data = bytearray(OBJECT_HEADER_BYTES) + payload
        fill_header(memoryview(data), ObjectIdentity(namespace, 0, key))
        return bytes(data)

    def delete_at_next_read(self, prompt: Prompt, page: int) -> None:
        """An object goes after the next `exists`, which still finds it, and before its read."""
        read = self.backend.batch_get_into

        def delete_and_read(refs: Sequence[ObjectRef], deadline_s: float) -> list[ObjectStatus]:
            self.backend.batch_get_into = read
            self.delete(prompt, page)
            statuses: list[ObjectStatus] = read(refs, deadline_s)
            return statuses

        self.backend.batch_get_into = delete_and_read

    @property
    def _object_bytes(self) -> int:
        return OBJECT_HEADER_BYTES + int(self._worker._arena.geometry.payload_bytes[0])

    def _scratch(self, key: PageKey, num_bytes: int) -> ObjectRef:
        geometry = self._worker._arena.geometry
        first = geometry.num_host_pages - 2
        core = self._host._core
        assert all(core._index.state(page) is HostPageState.FREE for page in (first, first + 1))
        offset = geometry.page_offset(HostPageId(first), 0)
        return ObjectRef(
            ObjectName(key, 0), self._worker._arena.buffer[offset : offset + num_bytes], offset
        )

    def _deadline_s(self) -> float:
        return time.monotonic() + _DEADLINE_S
