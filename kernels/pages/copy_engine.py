"""Copies of pages by the GPU's copy engine, all pieces in one call: no multiprocessor takes part.

On an H200 (2026-11-21), of a contiguous copy: with pieces of 64 KiB 0.98 to L1 and 0.90 to L2, with
128 KiB 0.99 and 0.94, with 256 KiB 1.00 and 0.97. `page_copy` moves 0.92 and 0.94 and disturbs
other work more. The host spends 0.6 to 1 us per piece. Other copies in the same direction wait for
all of it, whatever their stream.
"""

import ctypes
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from raydix.kernels.pages.page_copy import CopyDirection, CopySegment, check_segment, piece_places

MIN_PIECE_BYTES = {CopyDirection.TO_POOL: 128 << 10, CopyDirection.TO_ARENA: 256 << 10}
"""The sizes in bytes from which the copy engine moves pieces faster than `page_copy` does."""
_MAX_PIECES_PER_CALL = 128
"""The most pieces in one call of the driver, which other threads cannot enter for these 0.1 ms."""
_CUDART = "libcudart.so.13"
_ORDERED_IN_STREAM = 1  # cudaMemcpySrcAccessOrderStream


_Words = NDArray[np.int64]


class _Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _Attributes(ctypes.Structure):
    """cudaMemcpyAttributes of CUDA 13."""

    _fields_ = (
        ("source_order", ctypes.c_int),
        ("source", _Location),
        ("target", _Location),
        ("flags", ctypes.c_uint),
    )


def has_copy_engine() -> bool:
    """Does this build of PyTorch bring CUDA 13, whose cudaMemcpyBatchAsync is called here?"""
    return torch.cuda.is_available() and (torch.version.cuda or "").startswith("13.")


class CopyEngine:
    """Enqueues batched copies. Make one per process and keep it."""

    def __init__(self) -> None:
        """Raises RuntimeError where `has_copy_engine` is false."""
        if not has_copy_engine():
            raise RuntimeError(
                f"Batched copies need CUDA 13; PyTorch has {torch.version.cuda}. Use page_copy "
                f"instead."
            )

        self._copy = ctypes.CDLL(_CUDART).cudaMemcpyBatchAsync
        pointers, sizes = ctypes.c_void_p, ctypes.c_void_p
        attributes = (ctypes.POINTER(_Attributes), ctypes.POINTER(ctypes.c_size_t), ctypes.c_size_t)
        self._copy.argtypes = (
            pointers,
            pointers,
            sizes,
            ctypes.c_size_t,
            *attributes,
            ctypes.c_void_p,
        )
        self._copy.restype = ctypes.c_int

    def copy_pages(
        self, segments: Sequence[CopySegment], arena: Tensor, direction: CopyDirection
    ) -> None:
        """Enqueue all pieces of `segments` on the current stream, which is not the default one.

        `arena`: uint8 view of all of the arena, registered with CUDA. Raises ValueError as
        `page_copy.pack_copies` does, RuntimeError if CUDA refuses.
        """
        stream = torch.cuda.current_stream().cuda_stream
        if not stream:
            raise ValueError("Batched copies cannot run on the default stream; enter another one.")
        if arena.dtype != torch.uint8 or not arena.is_contiguous():
            raise ValueError(f"The arena is {arena.dtype}; expected contiguous uint8.")
        for segment in segments:
            check_segment(segment)

        places = [piece_places(segment) for segment in segments]
        in_pool = np.concatenate([pool for pool, _, _ in places])
        in_arena = np.concatenate([offsets for _, offsets, _ in places]) + arena.data_ptr()
        sizes = np.concatenate([np.full(len(pool), piece_bytes) for pool, _, piece_bytes in places])
        source, target = (
            (in_arena, in_pool) if direction is CopyDirection.TO_POOL else (in_pool, in_arena)
        )

        for start in range(0, len(sizes), _MAX_PIECES_PER_CALL):
            part = slice(start, start + _MAX_PIECES_PER_CALL)
            self._copy_part(target[part], source[part], sizes[part], stream)

    def _copy_part(self, target: _Words, source: _Words, sizes: _Words, stream: int) -> None:
        attributes, first = _Attributes(source_order=_ORDERED_IN_STREAM), ctypes.c_size_t(0)
        status = self._copy(
            target.ctypes.data,
            source.ctypes.data,
            sizes.ctypes.data,
            len(sizes),
            attributes,
            first,
            1,
            stream,
        )
        if status:
            raise RuntimeError(f"cudaMemcpyBatchAsync returned {status} for {len(sizes)} pieces.")
