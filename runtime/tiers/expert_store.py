"""All experts of a model in a node's shared memory: what seats are filled from.

The memory is a memfd of the Supervisor, which outlives every rank: whatever rank dies, all experts
stay at hand, and nothing is left behind when the Supervisor ends.
"""

import fcntl
import mmap
import os
import struct
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from raydix.errors import CheckpointError, ConfigError
from raydix.runtime.config.capacity import format_bytes
from raydix.runtime.config.memory_limit import available_memory_bytes

_CONTENT = struct.Struct("<8s32s3q")
"""The content: magic, identity, layers, experts, bytes of an expert."""
_FINGERPRINT = struct.Struct("<32s?")
"""The record behind the content: the weight fingerprint, and whether it is known."""
_MAGIC = b"rdxexprt"
_PAGE_BYTES = mmap.PAGESIZE


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertMemory:
    """Where processes of this host find the memory: descriptor `fd` of process `pid`."""

    pid: int
    fd: int

    @classmethod
    def create(cls) -> "ExpertMemory":
        """Make one of this process, still without bytes: the first rank gives it its size."""
        return cls(pid=os.getpid(), fd=os.memfd_create("raydix-experts", os.MFD_CLOEXEC))

    def close(self) -> None:
        """Close the descriptor; what is mapped stays until it is unmapped. By its creator alone."""
        os.close(self.fd)

    @property
    def path(self) -> str:
        """The path by which another process opens the memory."""
        return f"/proc/{self.pid}/fd/{self.fd}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreContent:
    """The content that a store is to hold; equal on all ranks and generations of an engine."""

    identity: bytes
    """A digest of 32 bytes of all that decides what the experts' bytes are."""
    num_layers: int
    """The number of layers that have experts, numbered from 0."""
    num_experts: int
    expert_bytes: int

    @property
    def flags_start(self) -> int:
        """The offset of the flags, one byte per expert, that say whether it is filled."""
        return _PAGE_BYTES

    @property
    def data_start(self) -> int:
        """The offset at which the first expert begins."""
        num_flags = self.num_layers * self.num_experts
        return self.flags_start + -(-num_flags // _PAGE_BYTES) * _PAGE_BYTES

    @property
    def size_bytes(self) -> int:
        """The size of the whole memory, in bytes."""
        return self.data_start + self.num_layers * self.num_experts * self.expert_bytes


class ExpertStore:
    """Owns: one mapping of the experts' memory.

    An expert is written by a rank that has loaded it, and marked afterwards; it never changes then.
    Several ranks may write one at once, as they write the same bytes.
    """

    def __init__(self, fd: int, content: StoreContent) -> None:
        """Map the whole of `fd`, which the caller keeps."""
        self.content = content
        mapping = mmap.mmap(fd, content.size_bytes)
        self._bytes: NDArray[np.uint8] = np.frombuffer(mapping, dtype=np.uint8)
        shape = content.num_layers, content.num_experts
        flags = self._bytes[content.flags_start :][: shape[0] * shape[1]]
        self._filled_LE = flags.reshape(shape)
        data = self._bytes[content.data_start :]
        self._experts_LEB = data.reshape(*shape, content.expert_bytes)

    @classmethod
    def open(cls, memory: ExpertMemory, content: StoreContent) -> "ExpertStore":
        """Map the memory of another process of this user; who comes first gives it its size.

        Raises ConfigError if there is not so much memory, CheckpointError if it holds the experts
        of another model or checkpoint.
        """
        # Opened anew, so that the lock below is this rank's own.
        fd = os.open(memory.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            if not any(os.pread(fd, _CONTENT.size, 0)):
                _require_memory(content.size_bytes)
                os.ftruncate(fd, content.size_bytes)
                # Last: a rank that ends before leaves memory that the next one may size again.
                os.pwrite(fd, _pack(content), 0)
            else:
                _require_content(fd, content)
            return cls(fd, content)
        finally:
            # By name: the mapping keeps a descriptor of the same opening, and with it the lock.
            fcntl.flock(fd, fcntl.LOCK_UN)
            os.close(fd)

    def expert(self, layer: int, expert: int) -> NDArray[np.uint8]:
        """The bytes of a logical expert, writable."""
        return self._experts_LEB[layer, expert]

    def is_filled(self, layer: int, expert: int) -> bool:
        """Some rank has written the expert."""
        return bool(self._filled_LE[layer, expert])

    def mark_filled(self, layer: int, expert: int) -> None:
        """All bytes of the expert have been written."""
        self._filled_LE[layer, expert] = 1

    @property
    def is_complete(self) -> bool:
        """Every expert is here."""
        return bool(self._filled_LE.all())

    @property
    def weight_fingerprint(self) -> bytes | None:
        """The fingerprint of the experts' whole checkpoint; None while it is unknown."""
        fingerprint, is_known = _FINGERPRINT.unpack_from(self._bytes.data, _CONTENT.size)
        return fingerprint if is_known else None

    def set_weight_fingerprint(self, fingerprint: bytes) -> None:
        """Keep it for ranks that will not read the whole checkpoint. Every rank has the same."""
        _FINGERPRINT.pack_into(self._bytes.data, _CONTENT.size, fingerprint, True)

    def close(self) -> None:
        """Drop the mapping, which ends with the last view of it."""
        empty = np.empty(0, dtype=np.uint8)
        self._bytes = empty
        self._filled_LE = empty.reshape(0, 0)
        self._experts_LEB = empty.reshape(0, 0, 0)


def _pack(content: StoreContent) -> bytes:
    sizes = content.num_layers, content.num_experts, content.expert_bytes
    return _CONTENT.pack(_MAGIC, content.identity, *sizes)


def _require_content(fd: int, content: StoreContent) -> None:
    if os.pread(fd, _CONTENT.size, 0) != _pack(content):
        raise CheckpointError(
            "the host memory for experts holds those of another model or checkpoint: the "
            "checkpoint has changed since the engine started. Start the engine anew."
        )

    size_bytes = os.fstat(fd).st_size
    if size_bytes != content.size_bytes:
        raise CheckpointError(
            f"the host memory for experts has {size_bytes} bytes; its header says "
            f"{content.size_bytes}. Start the engine anew."
        )


def _require_memory(size_bytes: int) -> None:
    available = available_memory_bytes()
    if size_bytes > available:
        raise ConfigError(
            f"experts.host_store is true, but all experts of the model take "
            f"{format_bytes(size_bytes)}, and {format_bytes(available)} of host memory are left. "
            "Set experts.host_store to false and experts.rebalance to none: then a rank that died "
            "reads its experts from the checkpoint again."
        )
