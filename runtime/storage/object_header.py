"""The 64 bytes before every stored page, which prove after each read that it is the page that was asked for."""

import struct
from dataclasses import dataclass

import xxhash

from raydix.ids import PageKey
from raydix.kernels.page_codec import Codec
from raydix.runtime.cache.kv_layout import OBJECT_HEADER_BYTES
from raydix.runtime.messages.host import ObjectStatus

MAGIC = b"RDXP"
VERSION = 1
_CODEC_NUMBERS = {Codec.NONE: 0, Codec.INT8: 1, Codec.FP8: 2}

_FORMAT = struct.Struct("<4sHHIHHQ8s32s")
"""Magic, version, codec, payload length, group, reserved, xxh3-64 of the payload, namespace, key."""
assert _FORMAT.size == OBJECT_HEADER_BYTES


@dataclass(frozen=True, slots=True)
class ObjectIdentity:
    """What a stored page must be, apart from its payload."""

    namespace: bytes
    group: int
    key: PageKey
    codec: Codec = Codec.NONE


def fill_header(page: memoryview, identity: ObjectIdentity) -> None:
    """Write the header of `page` (header and payload) in place."""
    payload = page[OBJECT_HEADER_BYTES:]
    checksum = xxhash.xxh3_64_intdigest(payload)
    _FORMAT.pack_into(
        page,
        0,
        MAGIC,
        VERSION,
        _CODEC_NUMBERS[identity.codec],
        len(payload),
        identity.group,
        0,
        checksum,
        identity.namespace,
        identity.key,
    )


def verify_object(page: memoryview, identity: ObjectIdentity) -> ObjectStatus:
    """Compare header and payload of `page` with what was asked for: OK, or the first thing that is wrong."""
    if len(page) < OBJECT_HEADER_BYTES:
        return ObjectStatus.TOO_SHORT
    magic, version, codec, length, group, _, checksum, namespace, key = _FORMAT.unpack_from(page)
    payload = page[OBJECT_HEADER_BYTES:]
    findings = (
        (magic == MAGIC, ObjectStatus.BAD_MAGIC),
        (version == VERSION, ObjectStatus.BAD_VERSION),
        (namespace == identity.namespace, ObjectStatus.WRONG_NAMESPACE),
        (key == identity.key and group == identity.group, ObjectStatus.WRONG_KEY),
        (codec == _CODEC_NUMBERS[identity.codec], ObjectStatus.WRONG_CODEC),
        (length == len(payload), ObjectStatus.WRONG_LENGTH),
    )
    for is_right, status in findings:
        if not is_right:
            return status
    return ObjectStatus.OK if xxhash.xxh3_64_intdigest(payload) == checksum else ObjectStatus.BAD_CHECKSUM
