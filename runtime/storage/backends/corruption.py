"""Ways in which a stored object can be bad, for tests and for the fake backend."""

from enum import StrEnum

from raydix.runtime.config.kv_layout import OBJECT_HEADER_BYTES


class Corruption(StrEnum):
    """One way each; several are named by the status that a reader must find."""

    EMPTY = "empty"
    SHORT = "short"
    LONG = "long"
    ZEROED = "zeroed"
    """Header and payload are zeros, as in a file that was given its size and never written."""
    ZERO_PAYLOAD = "zero payload"
    TORN = "torn"
    """The second half of the payload was never written."""
    FLIPPED = "flipped"
    """One bit of the payload is wrong."""
    MAGIC = "magic"
    STALE = "stale"
    """The object was written in another version of the format."""
    CODEC = "codec"
    LENGTH = "length"
    GROUP = "group"
    CHECKSUM = "checksum"
    FOREIGN = "foreign"
    """The object belongs to another namespace."""
    SWAPPED = "swapped"
    """The object under this name is another page's."""


_FIELD_OFFSETS = {
    Corruption.MAGIC: 0,
    Corruption.STALE: 4,
    Corruption.CODEC: 6,
    Corruption.LENGTH: 8,
    Corruption.GROUP: 12,
    Corruption.CHECKSUM: 16,
    Corruption.FOREIGN: 24,
    Corruption.SWAPPED: 32,
}
"""The offset of the header's field of which one bit is wrong, by kind of corruption."""


def corrupt(data: bytes, kind: Corruption) -> bytes:
    """A bad copy of an object, header and payload."""
    bad = bytearray(data)
    middle = OBJECT_HEADER_BYTES + (len(data) - OBJECT_HEADER_BYTES) // 2

    match kind:
        case Corruption.EMPTY:
            return b""
        case Corruption.SHORT:
            return data[:middle]
        case Corruption.LONG:
            return data + bytes(64)
        case Corruption.ZEROED:
            return bytes(len(data))
        case Corruption.ZERO_PAYLOAD:
            bad[OBJECT_HEADER_BYTES:] = bytes(len(data) - OBJECT_HEADER_BYTES)
        case Corruption.TORN:
            bad[middle:] = bytes(len(data) - middle)
        case Corruption.FLIPPED:
            bad[-1] ^= 0x10
        case _:
            bad[_FIELD_OFFSETS[kind]] ^= 1
    return bytes(bad)
