"""The shape of cached keys and values: groups of layers that cache alike, and the canonical page.

A canonical page holds `[layer of the group][kv head][k|v][token][dim]` (latent: `[layer][token][dim]`), contiguous, in
the arena and in storage alike. In both it is preceded by a 64-byte object header.
"""

from dataclasses import dataclass
from enum import StrEnum

OBJECT_HEADER_BYTES = 64


class GroupKind(StrEnum):
    """How far back the layers of a group look."""

    FULL = "full"
    WINDOW = "window"
    LATENT = "latent"


@dataclass(frozen=True, slots=True, kw_only=True)
class KvGroup:
    """Layers that cache alike. `layers` are the model's layer indices; `window` is in tokens, for WINDOW only."""

    kind: GroupKind
    layers: tuple[int, ...]
    num_kv_heads: int
    head_dim: int
    window: int | None = None

    @property
    def token_elements(self) -> int:
        """Elements that one token takes in all layers of the group."""
        per_head = self.head_dim if self.kind is GroupKind.LATENT else 2 * self.head_dim
        heads = 1 if self.kind is GroupKind.LATENT else self.num_kv_heads
        return len(self.layers) * heads * per_head


@dataclass(frozen=True, slots=True, kw_only=True)
class KvLayout:
    """Everything that fixes the bytes of a page: equal layouts mean interchangeable pages of one model."""

    page_size: int
    dtype: str
    dtype_bytes: int
    groups: tuple[KvGroup, ...]
    version: int = 1

    def payload_bytes(self, group: int) -> int:
        """Bytes of one canonical page."""
        return self.groups[group].token_elements * self.page_size * self.dtype_bytes

    def host_page_bytes(self, group: int) -> int:
        """Bytes of one host page: header and payload, rounded up to 64."""
        return -(-(OBJECT_HEADER_BYTES + self.payload_bytes(group)) // 64) * 64

    @property
    def token_bytes(self) -> int:
        """Bytes of KV that one token takes in all groups."""
        return sum(group.token_elements for group in self.groups) * self.dtype_bytes
