"""The 64 bytes before every stored page, which prove that it is the page that was asked for."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from xxhash import xxh3_64_intdigest as _checksum

from raydix.ids import PageKey
from raydix.kernels.pages.page_codec import Codec
from raydix.runtime.config.kv_layout import OBJECT_HEADER_BYTES
from raydix.runtime.messages.host import ObjectStatus
from raydix.runtime.storage.backend import ObjectRef
from raydix.runtime.storage.namespace import Namespace

MAGIC = b"RDXP"
VERSION = 1
_CODEC_NUMBERS = {Codec.NONE: 0, Codec.INT8: 1, Codec.FP8: 2}

_FORMAT = struct.Struct("<4sHHIHHQ8s32s")
"""Header: magic, version, codec, payload length, group, 0, payload's xxh3-64, namespace, key."""
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
    checksum = _checksum(payload)

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
    """Compare header and payload of `page` with what was asked for; returns what is wrong first."""
    if len(page) < OBJECT_HEADER_BYTES:
        return ObjectStatus.TOO_SHORT
    magic, version, codec, length, group, _, checksum, namespace, key = _FORMAT.unpack_from(page)
    payload = page[OBJECT_HEADER_BYTES:]

    # The checksum comes last: it is all that reads the payload.
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
    return ObjectStatus.OK if _checksum(payload) == checksum else ObjectStatus.BAD_CHECKSUM


def fill_headers(refs: Sequence[ObjectRef], namespace: Namespace) -> None:
    """`fill_header` for a batch."""
    digest, codec = namespace.digest, _CODEC_NUMBERS[namespace.codec]
    for (key, group), page, _ in refs:
        payload = page[OBJECT_HEADER_BYTES:]
        checksum = _checksum(payload)
        _FORMAT.pack_into(
            page, 0, MAGIC, VERSION, codec, len(payload), group, 0, checksum, digest, key
        )


def verify_objects(
    refs: Sequence[ObjectRef], statuses: Sequence[ObjectStatus], namespace: Namespace
) -> list[ObjectStatus]:
    """`verify_object` for those of a batch that are OK."""
    ok, pack, digest = ObjectStatus.OK, _FORMAT.pack, namespace.digest
    codec = _CODEC_NUMBERS[namespace.codec]

    found: list[ObjectStatus] = []
    for ((key, group), page, _), status in zip(refs, statuses, strict=True):
        if status is ok:
            # To compare a good header whole takes half the time of field by field.
            payload = page[OBJECT_HEADER_BYTES:]
            header = pack(
                MAGIC, VERSION, codec, len(payload), group, 0, _checksum(payload), digest, key
            )
            if page[:OBJECT_HEADER_BYTES] != header:
                found.append(
                    verify_object(page, ObjectIdentity(digest, group, key, namespace.codec))
                )
                continue
        found.append(status)
    return found
