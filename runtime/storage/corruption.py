"""Ways in which a stored object can be bad, for tests and for the fake backend."""

from enum import StrEnum

from raydix.runtime.cache.kv_layout import OBJECT_HEADER_BYTES


class Corruption(StrEnum):
    """One way each, and what a reader must find."""

    EMPTY = "empty"
    SHORT = "short"
    LONG = "long"
    ZEROED = "zeroed"
    FLIPPED = "flipped"
    """One bit of the payload."""
    SWAPPED = "swapped"
    """Another page's object under this name."""
    FOREIGN = "foreign"
    """Another namespace's object."""
    STALE = "stale"
    """Written in another version of the format."""


def corrupt(data: bytes, kind: Corruption) -> bytes:
    """A bad copy of an object, header and payload."""
    bad = bytearray(data)
    match kind:
        case Corruption.EMPTY:
            return b""
        case Corruption.SHORT:
            return data[: OBJECT_HEADER_BYTES + (len(data) - OBJECT_HEADER_BYTES) // 2]
        case Corruption.LONG:
            return data + bytes(64)
        case Corruption.ZEROED:
            return bytes(len(data))
        case Corruption.FLIPPED:
            bad[-1] ^= 0x10
        case Corruption.SWAPPED:
            bad[OBJECT_HEADER_BYTES - 1] ^= 1
        case Corruption.FOREIGN:
            bad[24] ^= 1
        case Corruption.STALE:
            bad[4] ^= 0xFF
    return bytes(bad)
