"""L3 in a Mooncake store: DRAM that the clients of one master lend, moved from the arena itself."""

import logging
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from raydix.errors import ConfigError
from raydix.ids import UserId
from raydix.runtime.config.l3 import MooncakeL3Section
from raydix.runtime.messages.host import ObjectStatus
from raydix.runtime.messages.retention import Retention
from raydix.runtime.storage.backend import ObjectInfo, ObjectName, ObjectRef
from raydix.runtime.storage.backend_counts import BackendCounts
from raydix.runtime.storage.last_error import LastError
from raydix.runtime.storage.namespace import Namespace

logger = logging.getLogger(__name__)

_COPY_BUFFER_BYTES = 16 << 20
"""The size of the client's own buffer, for calls that copy; ours do not."""
_RECONNECT_S = 5.0
"""The pause between two attempts to reach a master that does not answer."""
_PROBE_S = 1.0
"""The time for our own attempt to connect: without a master the library takes 90 s (0.3.13)."""

_NO_SPACE = -200
_TOO_LARGE = -600
_BEING_WRITTEN = -703
_NOT_FOUND = -704
_LEASE_EXPIRED = -707
"""The library's error when a transfer outlives its lease: the bytes may be another object's."""
_FAILURES = {
    _NO_SPACE: ObjectStatus.FULL,
    _TOO_LARGE: ObjectStatus.WRONG_LENGTH,
    _BEING_WRITTEN: ObjectStatus.MISSING,
    _NOT_FOUND: ObjectStatus.MISSING,
    _LEASE_EXPIRED: ObjectStatus.TIMED_OUT,
}


class MooncakeBackend:
    """Owns: one Mooncake client, with which the arena is registered.

    Keys are `raydix/<namespace, 16 hex>/<group>/<key, 64 hex>`. The master evicts; objects live in
    memory and vanish with the process that lent it. A name that a dead process had begun to write
    cannot be written again before the master's `put_start_discard_timeout_sec` is over. A master
    that does not answer fails operations, not `open`; the client finds it again by itself. The
    library's calls take no deadline: a call that has begun is waited for, since it may still write
    into the arena.
    """

    def __init__(
        self, section: MooncakeL3Section, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._section = section
        self._clock = clock
        self._prefix = ""
        self._arena: memoryview = memoryview(b"")
        self._address = 0
        self._client: Any = None
        self._next_try_s = 0.0
        self._is_open = False
        self._is_setting_up = threading.Lock()
        self._obstacle = "the client is being set up"
        """The reason why there is no client, where there is none."""
        self._counts = BackendCounts(f"Mooncake master {section.master}")

    def open(self, arena: memoryview, namespace: Namespace) -> None:
        """Set up the client.

        Raises ConfigError if Mooncake is not installed or cannot register the arena.
        """
        _store_class()
        self._prefix = f"raydix/{namespace.hex}/"
        self._arena = arena
        self._address = np.frombuffer(arena, dtype=np.uint8).ctypes.data
        self._next_try_s = self._clock()
        self._is_open = True
        self._connect()

    def _connect(self) -> Any:
        """The client; None while no master answers, or while another thread sets one up.

        Raises ConfigError the first time, if the arena cannot be registered; later that is one more
        failure.
        """
        if self._client is None and self._is_setting_up.acquire(blocking=False):
            try:
                if self._client is None and self._is_open and self._clock() >= self._next_try_s:
                    # The pause begins with the end of the attempt, which may take as long.
                    try:
                        self._client = self._set_up()
                    finally:
                        self._next_try_s = self._clock() + _RECONNECT_S
            finally:
                self._is_setting_up.release()
        return self._client

    def _reconnect(self) -> Any:
        """The client, for an operation; None if there is none."""
        try:
            return self._connect()
        except ConfigError as error:
            logger.warning("%s", error)
            return None

    def _set_up(self) -> Any:
        section = self._section
        try:
            address = _address_towards(section.master)
        except OSError as error:
            self._obstacle = f"it does not answer: {error}"
            logger.warning("the Mooncake master %s does not answer: %s", section.master, error)
            return None

        client = _store_class()()
        code = client.setup(
            section.host or address,
            section.metadata,
            section.segment_bytes or 0,
            _COPY_BUFFER_BYTES,
            section.protocol,
            section.devices,
            section.master,
        )
        if code:
            client.close()
            self._obstacle = f"no client could be set up: code {code}"
            logger.warning("Mooncake master %s: %s", section.master, self._obstacle)
            return None

        code = client.register_buffer(self._address, len(self._arena))
        if code:
            client.close()
            raise ConfigError(
                f"Mooncake cannot register the arena's {len(self._arena)} bytes for "
                f"{section.protocol}: code {code}. "
                "For RDMA raise the limit of locked memory (ulimit -l)."
            )
        self._counts.add("clients_set_up")
        return client

    def _key(self, name: ObjectName) -> str:
        return f"{self._prefix}{name.group}/{name.key.hex()}"

    def batch_exists(self, names: Sequence[ObjectName]) -> list[ObjectStatus]:
        """Ask the master, in one call."""
        client = self._reconnect()
        if client is None or not names:
            return self._all_failed(len(names))
        found = {1: ObjectStatus.OK, 0: ObjectStatus.MISSING}
        codes = client.batch_is_exist([self._key(name) for name in names])
        return [found[code] if code in found else self._failure(code) for code in codes]

    def batch_get_into(self, refs: Sequence[ObjectRef], deadline_s: float) -> list[ObjectStatus]:
        """Have objects written into the arena by whoever holds them."""
        client = self._reconnect()
        if client is None or not refs:
            return self._all_failed(len(refs))
        if self._clock() >= deadline_s:
            return [ObjectStatus.TIMED_OUT] * len(refs)

        # Of a key that is twice in a batch only one page is filled, yet both are reported (0.3.13).
        first = {ref.name: ref for ref in reversed(refs)}
        if len(first) == len(refs):
            return self._get(client, refs)

        found = dict(zip(first, self._get(client, list(first.values())), strict=True))
        for ref in refs:
            if found[ref.name] is ObjectStatus.OK and ref is not first[ref.name]:
                ref.fill(first[ref.name].page)
        return [found[ref.name] for ref in refs]

    def _get(self, client: Any, refs: Sequence[ObjectRef]) -> list[ObjectStatus]:
        """Fill pages, each for a key of its own."""
        keys, addresses, sizes = self._ranges(refs)
        codes = client.batch_get_into(keys, addresses, sizes)
        statuses = [
            ObjectStatus.OK
            if code >= size
            else ObjectStatus.TOO_SHORT
            if code >= 0
            else self._failure(code)
            for code, size in zip(codes, sizes, strict=True)
        ]
        self._counts.add("objects_read", statuses.count(ObjectStatus.OK))
        return statuses

    def batch_put_from(self, refs: Sequence[ObjectRef], deadline_s: float) -> list[ObjectStatus]:
        """Have pages read from the arena. The first writer wins; later ones get the same status."""
        client = self._reconnect()
        if client is None or not refs:
            return self._all_failed(len(refs))
        if self._clock() >= deadline_s:
            return [ObjectStatus.TIMED_OUT] * len(refs)
        codes = client.batch_put_from(*self._ranges(refs))
        num_put = codes.count(0)
        self._counts.add("objects_put", num_put)
        if num_put < len(refs):
            self._counts.add("puts_refused", len(refs) - num_put)
        return [ObjectStatus.OK if code == 0 else self._failure(code) for code in codes]

    def _ranges(self, refs: Sequence[ObjectRef]) -> tuple[list[str], list[int], list[int]]:
        """Keys, addresses and sizes."""
        addresses = [self._address + ref.offset for ref in refs]
        return [self._key(ref.name) for ref in refs], addresses, [len(ref.page) for ref in refs]

    def delete(self, names: Sequence[ObjectName]) -> list[ObjectStatus]:
        """Remove, whoever has a lease: a reader tells by the header if the bytes are others."""
        client = self._reconnect()
        if client is None or not names:
            return self._all_failed(len(names))
        codes = client.batch_remove([self._key(name) for name in names], True)
        return [ObjectStatus.OK if code == 0 else self._failure(code) for code in codes]

    def clear(self) -> ObjectStatus:
        """Remove all keys with the namespace's prefix, in one call."""
        client = self._reconnect()
        if client is None:
            return self._all_failed(1)[0]
        num_removed = client.remove_by_regex(f"^{self._prefix}", True)
        return ObjectStatus.OK if num_removed >= 0 else self._failure(num_removed)

    def query(self, names: Sequence[ObjectName]) -> list[ObjectInfo | None]:
        """Tell sizes, by one call each; the master knows no times."""
        client = self._reconnect()
        if client is None:
            return [None] * len(names)
        sizes = [client.get_size(self._key(name)) for name in names]
        return [ObjectInfo(size, None) if size >= 0 else None for size in sizes]

    def retain(
        self, names: Sequence[ObjectName], user: UserId, retention: Retention | None
    ) -> None:
        """The master chooses what goes, and knows no hints."""

    def stats(self) -> dict[str, int]:
        """Counters; asks the master nothing."""
        return {"is_connected": int(self._client is not None)} | self._counts.figures()

    def last_error(self) -> LastError | None:
        """The error with which the store last failed, as `StorageBackend.last_error` says."""
        return self._counts.last_error

    def tidy(self) -> bool:
        """The master makes room."""
        return False

    def close(self) -> None:
        """Close the client, and with it take back the memory that was lent."""
        with self._is_setting_up:
            client, self._client = self._client, None
            self._is_open = False
        if client is not None:
            client.unregister_buffer(self._address)
            client.close()
        self._arena = memoryview(b"")

    def _all_failed(self, count: int) -> list[ObjectStatus]:
        """The statuses of objects for whose sake no call is made."""
        if count:
            self._counts.io_error(self._obstacle, count)
        return [ObjectStatus.IO_ERROR] * count

    def _failure(self, code: int) -> ObjectStatus:
        if code in _FAILURES:
            return _FAILURES[code]
        return self._counts.io_error(f"a call ended with code {code}")


def _address_towards(master: str) -> str:
    """The address of this host that the master sees. Raises OSError if it does not answer."""
    name, _, port = master.rpartition(":")
    try:
        with socket.create_connection((name.strip("[]"), int(port)), timeout=_PROBE_S) as probe:
            return str(probe.getsockname()[0])
    except (OverflowError, UnicodeError) as error:
        raise OSError(str(error)) from error


def _store_class() -> Any:
    """The library's client class. Raises ConfigError if it cannot be imported."""
    try:
        from mooncake.store import MooncakeDistributedStore
    except ImportError as error:
        raise ConfigError(
            f"cache.l3.backend is mooncake, but the library cannot be imported ({error}). "
            "Install raydix[mooncake], and libibverbs1 from the system's packages."
        ) from error
    return MooncakeDistributedStore
