"""Tensors of safetensors files: each is read once, by one of several threads, ahead of its use.

A thread reads into pinned memory, digests what it has read and puts it on the device, piece by
piece, so that files, processor and bus work at once.
"""

import os
import queue
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import torch
import xxhash
from torch import Tensor

from raydix.runtime.model.formats.stored_tensor import StoredTensor

NUM_THREADS = {"cpu": 2, "cuda": 8}
"""The number of threads that read. On the cpu the same cores fill the parameters."""
_PIECE_BYTES = 4 << 20
_AHEAD_BYTES = 512 << 20
"""The most bytes of tensors that have been read, or are being read, and are not taken yet."""
_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
}
"""The dtypes by the format's words; the decoder takes the floats among these."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReadTensor:
    """A tensor on the device, whole, and the xxh3-128 of its bytes."""

    stored: StoredTensor
    tensor: Tensor
    digest: bytes


def empty_like_stored(stored: StoredTensor) -> Tensor:
    """A tensor of the same shape and dtype that has no bytes, on the device `meta`."""
    return torch.empty(stored.shape, dtype=_DTYPES[stored.dtype], device="meta")


def read_tensors(tensors: Iterable[StoredTensor], device: torch.device) -> Iterator[ReadTensor]:
    """Read these onto the device and pass them on in their order.

    Each is complete for every stream that is enqueued to after it is passed on. To be taken on the
    stream that is current for the caller from the first one on. Raises OSError.
    """
    num_threads = NUM_THREADS[device.type]
    readers: queue.SimpleQueue[_Reader] = queue.SimpleQueue()
    for _ in range(num_threads):
        readers.put(_CudaReader(device) if device.type == "cuda" else _HostReader())

    def read(stored: StoredTensor) -> ReadTensor:
        reader = readers.get()
        try:
            return reader.read(stored)
        finally:
            readers.put(reader)

    ahead: deque[Future[ReadTensor]] = deque()
    sizes: deque[int] = deque()
    ahead_bytes = 0
    pool = ThreadPoolExecutor(num_threads, thread_name_prefix="read-weights")
    try:
        for stored in tensors:
            while sizes and ahead_bytes + stored.num_bytes > _AHEAD_BYTES:
                ahead_bytes -= sizes.popleft()
                yield ahead.popleft().result()
            ahead.append(pool.submit(read, stored))
            sizes.append(stored.num_bytes)
            ahead_bytes += stored.num_bytes

        while ahead:
            yield ahead.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


class _Reader(Protocol):
    """Reads tensors, for one thread at a time."""

    def read(self, stored: StoredTensor) -> ReadTensor:
        """Read one. Raises OSError."""


class _HostReader:
    """A `_Reader` for parameters in host memory."""

    def read(self, stored: StoredTensor) -> ReadTensor:
        """Read a tensor in pieces, and hash each while it is in the processor's cache."""
        whole_B = torch.empty(stored.num_bytes, dtype=torch.uint8)
        digest = xxhash.xxh3_128()
        with stored.path.open("rb", buffering=0) as file:
            for start in range(0, stored.num_bytes, _PIECE_BYTES):
                piece_B = whole_B[start : start + _PIECE_BYTES]
                _fill(piece_B, file.fileno(), stored, start)
                digest.update(piece_B.numpy().data)
        return _finished(stored, whole_B, digest.digest())


@dataclass(frozen=True, slots=True, eq=False)
class _Half:
    pinned_B: Tensor
    done: torch.cuda.Event


class _CudaReader:
    """A `_Reader` for parameters on a CUDA device, on a stream of its own.

    Owns: a pinned buffer of two halves. While one is on the bus, the other is filled.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        with torch.cuda.device(device):
            self._stream = torch.cuda.Stream()
            # On which tensors are taken, and freed.
            self._home = torch.cuda.current_stream()
            self._halves = [
                _Half(
                    torch.empty(_PIECE_BYTES, dtype=torch.uint8, pin_memory=True),
                    torch.cuda.Event(),
                )
                for _ in range(2)
            ]

    def read(self, stored: StoredTensor) -> ReadTensor:
        """Read a tensor in pieces: the device copies one while the next is read and hashed."""
        digest = xxhash.xxh3_128()
        with torch.cuda.device(self._device), torch.cuda.stream(self._home):
            whole_B = torch.empty(stored.num_bytes, dtype=torch.uint8, device=self._device)
        with (
            torch.cuda.device(self._device),
            torch.cuda.stream(self._stream),
            stored.path.open("rb", buffering=0) as file,
        ):
            # The memory may be that of a tensor which the caller's stream still copies from.
            self._stream.wait_stream(self._home)
            for number, start in enumerate(range(0, stored.num_bytes, _PIECE_BYTES)):
                half = self._halves[number % 2]
                half.done.synchronize()
                on_device_B = whole_B[start : start + _PIECE_BYTES]
                piece_B = half.pinned_B[: len(on_device_B)]
                _fill(piece_B, file.fileno(), stored, start)
                on_device_B.copy_(piece_B, non_blocking=True)
                half.done.record(self._stream)
                digest.update(piece_B.numpy().data)
            self._stream.synchronize()
        return _finished(stored, whole_B, digest.digest())


def _fill(piece_B: Tensor, file: int, stored: StoredTensor, start: int) -> None:
    """Read a piece that begins so many bytes into the tensor. Other threads run meanwhile."""
    view = piece_B.numpy().data
    while view:
        at = stored.offset + start + len(piece_B) - len(view)
        num_read = os.preadv(file, [view], at)
        if not num_read:
            raise OSError(f"{stored.name} ends after {at - stored.offset} bytes")
        view = view[num_read:]


def _finished(stored: StoredTensor, whole_B: Tensor, digest: bytes) -> ReadTensor:
    tensor = whole_B.view(_DTYPES[stored.dtype]).view(stored.shape)
    return ReadTensor(stored=stored, tensor=tensor, digest=digest)
