"""An expert's weights as one run of bytes, copied into a seat and out of it.

Legend: B bytes of an expert.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

_ALIGNMENT_BYTES = 256
_HALF_BYTES = 4 << 20
"""Enough for the bus's full speed, and what a page copy that comes behind it waits for: 0.1 ms."""


class ExpertCopier(Protocol):
    """Copies whole experts. For one thread at a time."""

    def wait_for_device(self) -> None:
        """Wait for all that other streams do, which may still write seats."""

    def to_seat(self, expert_B: Tensor, seat: Sequence[Tensor]) -> None:
        """Copy host memory into a seat's tensors. Returns once it is there for every stream."""

    def from_seat(self, seat: Sequence[Tensor], expert_B: Tensor) -> None:
        """Copy a seat's tensors, which nothing writes, into host memory."""


def expert_bytes(seat: Sequence[Tensor]) -> int:
    """Bytes of an expert whose seat has these tensors."""
    return sum(map(_aligned, seat))


def pieces(
    expert_B: Tensor, seat: Sequence[Tensor], max_bytes: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Corresponding runs of bytes of both, of at most so many."""
    start = 0
    for tensor in seat:
        flat = tensor.view(-1).view(torch.uint8)
        for at in range(0, len(flat), max_bytes):
            part = flat[at : at + max_bytes]
            yield expert_B[start + at : start + at + len(part)], part
        start += _aligned(tensor)


def _aligned(tensor: Tensor) -> int:
    return -(-tensor.nbytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES


class HostCopier:
    """An `ExpertCopier` for seats in host memory."""

    def wait_for_device(self) -> None:
        """Return at once: what host memory is written by has been done."""

    def to_seat(self, expert_B: Tensor, seat: Sequence[Tensor]) -> None:
        """Copy an expert's bytes into the seat's tensors."""
        for stored, held in pieces(expert_B, seat, expert_B.nbytes):
            held.copy_(stored)

    def from_seat(self, seat: Sequence[Tensor], expert_B: Tensor) -> None:
        """Copy the seat's tensors into an expert's bytes."""
        for stored, held in pieces(expert_B, seat, expert_B.nbytes):
            stored.copy_(held)


@dataclass(frozen=True, slots=True, eq=False)
class _Half:
    pinned_B: Tensor
    done: torch.cuda.Event


class BouncingCopier:
    """An `ExpertCopier` for seats on a CUDA device, on a stream of its own.

    Owns: a small pinned buffer of two halves. While one is on the bus, the host works on the other;
    the store, which is many times as large, need not be pinned.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        # The lowest priority is the default.
        self._stream = torch.cuda.Stream(device)
        with torch.cuda.device(device):
            self._halves = [
                _Half(
                    torch.empty(_HALF_BYTES, dtype=torch.uint8, pin_memory=True),
                    torch.cuda.Event(),
                )
                for _ in range(2)
            ]

    def wait_for_device(self) -> None:
        """Wait for all streams of the device."""
        torch.cuda.synchronize(self._device)

    def to_seat(self, expert_B: Tensor, seat: Sequence[Tensor]) -> None:
        """Copy an expert to the device through two halves of pinned memory, in turns."""
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            for number, (stored, held) in enumerate(pieces(expert_B, seat, _HALF_BYTES)):
                half = self._halves[number % 2]
                half.done.synchronize()
                bounced = half.pinned_B[: len(stored)]
                bounced.copy_(stored)
                held.copy_(bounced, non_blocking=True)
                half.done.record(self._stream)
            self._stream.synchronize()

    def from_seat(self, seat: Sequence[Tensor], expert_B: Tensor) -> None:
        """Copy an expert from the device through two halves of pinned memory, in turns."""
        last: tuple[_Half, Tensor] | None = None
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            for number, (stored, held) in enumerate(pieces(expert_B, seat, _HALF_BYTES)):
                half = self._halves[number % 2]
                half.pinned_B[: len(held)].copy_(held, non_blocking=True)
                half.done.record(self._stream)
                _finish(last)
                last = half, stored
            _finish(last)


def _finish(last: tuple[_Half, Tensor] | None) -> None:
    """Take over what has come off the device."""
    if last is not None:
        half, stored = last
        half.done.synchronize()
        stored.copy_(half.pinned_B[: len(stored)])


def make_copier(device: torch.device) -> ExpertCopier:
    """Make the copier for seats on this device."""
    return BouncingCopier(device) if device.type == "cuda" else HostCopier()
