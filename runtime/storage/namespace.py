"""The namespace of stored pages: equal namespaces and keys mean interchangeable bytes."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from raydix.kernels.pages.page_codec import Codec
from raydix.runtime.config.kv_layout import KvLayout

NAMESPACE_BYTES = 8

Field = bytes | str | int | None


def _tagged(name: str, value: Field) -> bytes:
    """Name, type, length and bytes of one field, so that no two lists of fields read alike."""
    raw = value if isinstance(value, bytes) else str(value).encode()
    return b"%s\0%s\0%d\0%s" % (name.encode(), type(value).__name__.encode(), len(raw), raw)


@dataclass(frozen=True, slots=True)
class Namespace:
    """A digest and, for people, the fields that it was made from. All objects have one codec."""

    digest: bytes
    codec: Codec
    description: Mapping[str, Field]

    @property
    def hex(self) -> str:
        """16 hexadecimal digits."""
        return self.digest.hex()


def make_namespace(model_fingerprint: bytes, weight_version: str, layout: KvLayout) -> Namespace:
    """The namespace of a model's pages: all that decides their bytes, but for the tokens.

    `layout` says what keys and values are kept as, the fingerprint what they were computed in.

    Nothing of rank, host or run goes in: their pages are interchangeable.
    """
    fields: dict[str, Field] = {
        "model_fingerprint": model_fingerprint,
        "weight_version": weight_version,
        "codec": layout.codec.value,
        "kv_dtype": layout.dtype,
        "dtype_bytes": layout.dtype_bytes,
        "layout_version": layout.version,
        "page_size": layout.page_size,
        "num_groups": len(layout.groups),
    }
    for index, group in enumerate(layout.groups):
        fields |= {
            f"group{index}.kind": group.kind.value,
            f"group{index}.layers": ",".join(map(str, group.layers)),
            f"group{index}.num_kv_heads": group.num_kv_heads,
            f"group{index}.head_dim": group.head_dim,
            f"group{index}.window": group.window,
        }

    digest = hashlib.sha256(
        b"".join(_tagged(name, value) for name, value in fields.items())
    ).digest()
    return Namespace(digest[:NAMESPACE_BYTES], layout.codec, fields)
