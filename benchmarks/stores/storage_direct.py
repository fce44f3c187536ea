"""Libraries of storage without an adapter, each called as its documentation shows.

Every call does the whole batch or raises. Headers and verification are the caller's.
"""

import os
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from raydix.runtime.storage.backend import ObjectRef
from raydix.runtime.storage.backends.resp import RespAddress, RespConnection, encode_command

_COPY_BUFFER_BYTES = 16 << 20
_TIMEOUT_S = 60.0


class Direct(Protocol):
    """A library with an arena to read into and write from."""

    def open(self, arena: memoryview) -> None:
        """Connect, and register the arena where the library knows such a thing."""
        ...

    def put(self, refs: Sequence[ObjectRef]) -> None:
        """Store pages that are not there yet."""
        ...

    def get(self, refs: Sequence[ObjectRef]) -> None:
        """Fill the pages."""
        ...

    def remove(self, refs: Sequence[ObjectRef]) -> None:
        """Remove these objects from the store."""
        ...

    def close(self) -> None:
        """The other end of `open`."""
        ...


def address_of(arena: memoryview) -> int:
    """Where the arena lies in memory."""
    return int(np.frombuffer(arena, dtype=np.uint8).ctypes.data)


class DirectFiles:
    """`pwritev` into a temporary and rename; `preadv`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def open(self, arena: memoryview) -> None:
        """Make as many folders as the backend spreads its files over."""
        for index in range(256):
            (self._folder / f"{index:02x}").mkdir(parents=True)

    def _path(self, ref: ObjectRef) -> str:
        key = ref.name.key.hex()
        return f"{self._folder}/{key[:2]}/{key}"

    def put(self, refs: Sequence[ObjectRef]) -> None:
        """Write one file after the other."""
        for ref in refs:
            path = self._path(ref)
            fd = os.open(f"{path}.tmp", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
            assert os.pwritev(fd, [ref.page], 0) == len(ref.page)
            os.close(fd)
            os.rename(f"{path}.tmp", path)

    def get(self, refs: Sequence[ObjectRef]) -> None:
        """Read one file after the other."""
        for ref in refs:
            fd = os.open(self._path(ref), os.O_RDONLY)
            assert os.preadv(fd, [ref.page], 0) == len(ref.page)
            os.close(fd)

    def remove(self, refs: Sequence[ObjectRef]) -> None:
        """Unlink the objects' files."""
        for ref in refs:
            os.unlink(self._path(ref))

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self._folder)


class DirectNixl(DirectFiles):
    """One transfer per batch; temporaries and renames as for files."""

    def __init__(self, folder: Path, options: Mapping[str, str]) -> None:
        super().__init__(folder)
        self._options = dict(options)
        self._agent: Any = None
        self._address = 0

    def open(self, arena: memoryview) -> None:
        """Register the arena with the POSIX plugin."""
        from nixl._api import nixl_agent, nixl_agent_config

        super().open(arena)
        self._agent = nixl_agent("direct", nixl_agent_config(enable_prog_thread=False, backends=[]))
        self._agent.create_backend("POSIX", self._options)
        self._address = address_of(arena)
        self._agent.register_memory([(self._address, len(arena), 0, "")], "DRAM")

    def put(self, refs: Sequence[ObjectRef]) -> None:
        """All files in one transfer."""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
        self._transfer(
            "WRITE", refs, [os.open(f"{self._path(ref)}.tmp", flags, 0o644) for ref in refs]
        )
        for ref in refs:
            os.rename(f"{self._path(ref)}.tmp", self._path(ref))

    def get(self, refs: Sequence[ObjectRef]) -> None:
        """All files in one transfer."""
        self._transfer("READ", refs, [os.open(self._path(ref), os.O_RDONLY) for ref in refs])

    def _transfer(self, operation: str, refs: Sequence[ObjectRef], fds: Sequence[int]) -> None:
        agent = self._agent
        files = agent.register_memory(
            [(0, len(ref.page), fd, "") for ref, fd in zip(refs, fds, strict=True)], "FILE"
        )
        pages = agent.get_xfer_descs(
            [(self._address + ref.offset, len(ref.page), 0) for ref in refs], "DRAM"
        )

        handle = agent.initialize_xfer(operation, pages, files.trim(), "direct")
        state = agent.transfer(handle)
        while state not in ("DONE", "ERR"):
            state = agent.check_xfer_state(handle)
        assert state == "DONE", state

        agent.release_xfer_handle(handle)
        agent.deregister_memory(files)
        for fd in fds:
            os.close(fd)


class DirectMooncake:
    """One call per batch."""

    def __init__(self, master: str) -> None:
        self._master = master
        self._client: Any = None
        self._address = 0

    def open(self, arena: memoryview) -> None:
        """Set up a client that lends nothing, and register the arena."""
        from mooncake.store import MooncakeDistributedStore

        self._client = MooncakeDistributedStore()
        settings = ("127.0.0.1", "P2PHANDSHAKE", 0, _COPY_BUFFER_BYTES, "tcp", "", self._master)
        assert self._client.setup(*settings) == 0
        self._address = address_of(arena)
        assert self._client.register_buffer(self._address, len(arena)) == 0

    def _ranges(self, refs: Sequence[ObjectRef]) -> tuple[list[str], list[int], list[int]]:
        keys = [f"direct/{ref.name.key.hex()}" for ref in refs]
        return keys, [self._address + ref.offset for ref in refs], [len(ref.page) for ref in refs]

    def put(self, refs: Sequence[ObjectRef]) -> None:
        """Write the objects by `batch_put_from`."""
        assert not any(self._client.batch_put_from(*self._ranges(refs)))

    def get(self, refs: Sequence[ObjectRef]) -> None:
        """Read the objects by `batch_get_into`."""
        assert self._client.batch_get_into(*self._ranges(refs)) == [len(ref.page) for ref in refs]

    def remove(self, refs: Sequence[ObjectRef]) -> None:
        """Remove the objects by `batch_remove`."""
        assert not any(self._client.batch_remove(self._ranges(refs)[0], True))

    def close(self) -> None:
        """Close the client."""
        self._client.unregister_buffer(self._address)
        self._client.close()


class DirectRedis:
    """Pipelined SET and MGET over one connection of the RESP client."""

    def __init__(self, url: str) -> None:
        self._address = RespAddress.parse(url)
        self._connection: RespConnection | None = None

    def open(self, arena: memoryview) -> None:
        """Connect to the server."""
        self._connection = RespConnection(self._address, self._deadline_s())

    def _deadline_s(self) -> float:
        return time.monotonic() + _TIMEOUT_S

    def _keys(self, refs: Sequence[ObjectRef]) -> list[bytes]:
        return [b"direct:" + ref.name.key.hex().encode() for ref in refs]

    def put(self, refs: Sequence[ObjectRef]) -> None:
        """All commands in one write."""
        assert self._connection is not None
        deadline_s = self._deadline_s()
        parts: list[bytes | memoryview] = []
        for key, ref in zip(self._keys(refs), refs, strict=True):
            head = b"*4\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n" % (len(key), key, len(ref.page))
            parts += (head, ref.page, b"\r\n$2\r\nNX\r\n")
        self._connection.send(parts, deadline_s)
        for _ in refs:
            assert self._connection.read_reply(deadline_s) == b"OK"

    def get(self, refs: Sequence[ObjectRef]) -> None:
        """Read the objects by one command."""
        assert self._connection is not None
        deadline_s = self._deadline_s()
        self._connection.send([encode_command(b"MGET", *self._keys(refs))], deadline_s)
        assert self._connection.read_length(b"*", deadline_s) == len(refs)
        for ref in refs:
            assert self._connection.read_length(b"$", deadline_s) == len(ref.page)
            self._connection.read_into(ref.page, deadline_s)

    def remove(self, refs: Sequence[ObjectRef]) -> None:
        """Remove the objects by one command."""
        assert self._connection is not None
        assert self._connection.call(self._deadline_s(), b"UNLINK", *self._keys(refs)) == len(refs)

    def close(self) -> None:
        """Close the connection."""
        assert self._connection is not None
        self._connection.close()
