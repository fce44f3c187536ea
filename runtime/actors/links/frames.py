"""Frames on a byte stream: a little-endian uint32 length, then that many bytes."""

import struct

from raydix.errors import RaydixError

MAX_FRAME_BYTES = 256 << 20
MAX_HELLO_BYTES = 4096

_LENGTH = struct.Struct("<I")


class FrameTooLarge(RaydixError):
    """A frame larger than any message needs: the peer announces it, or it was to be sent."""


def frame(body: bytes) -> bytes:
    """A frame with `body`. Raises FrameTooLarge."""
    check_body(body)
    return _LENGTH.pack(len(body)) + body


def check_body(body: bytes) -> None:
    """Raise FrameTooLarge if no peer would take a frame with `body`."""
    if len(body) > MAX_FRAME_BYTES:
        raise FrameTooLarge(f"frame of {len(body)} bytes; at most {MAX_FRAME_BYTES} can be sent")


class FrameReader:
    """Owns: bytes of a stream that are not yet cut into frame bodies."""

    def __init__(self, max_bytes: int) -> None:
        """`max_bytes`: the longest body that is accepted for now."""
        self._max_bytes = max_bytes
        self._buffer = bytearray()

    @property
    def buffered_bytes(self) -> int:
        """Bytes that wait for the rest of their frame, or to be taken."""
        return len(self._buffer)

    @property
    def has_body(self) -> bool:
        """Whether `take` would not return None: it has a whole body, or raises."""
        if len(self._buffer) < _LENGTH.size:
            return False
        (length,) = _LENGTH.unpack_from(self._buffer)
        return length > self._max_bytes or len(self._buffer) >= _LENGTH.size + length

    @property
    def num_missing(self) -> int:
        """The bytes to wait for until `take` can say more: of the length, or of the body."""
        if len(self._buffer) < _LENGTH.size:
            return _LENGTH.size - len(self._buffer)
        (length,) = _LENGTH.unpack_from(self._buffer)
        return max(0, _LENGTH.size + int(length) - len(self._buffer))

    def accept(self, max_bytes: int) -> None:
        """Take bodies of up to `max_bytes` from now on, because the peer is trusted."""
        self._max_bytes = max_bytes

    def feed(self, data: bytes | memoryview) -> None:
        """Append received bytes."""
        self._buffer += data

    def take(self) -> bytes | None:
        """The next whole body; None until more is fed. Raises FrameTooLarge."""
        buffer = self._buffer
        if len(buffer) < _LENGTH.size:
            return None

        (length,) = _LENGTH.unpack_from(buffer)
        if length > self._max_bytes:
            raise FrameTooLarge(
                f"peer announces a frame of {length} bytes; at most {self._max_bytes} are accepted"
            )

        end = _LENGTH.size + length
        if len(buffer) < end:
            return None

        body = bytes(memoryview(buffer)[_LENGTH.size : end])
        del buffer[:end]
        return body
