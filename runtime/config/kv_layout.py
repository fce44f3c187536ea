"""The shape of cached keys and values: groups of layers that cache alike, and the canonical page.

A canonical page holds `[layer of the group][kv head][k|v][token][dim]` (latent:
`[layer][token][dim]`), contiguous, in the arena and in storage alike; with a codec each head is
followed by its scales (`raydix.kernels.pages.page_codec`). In both tiers it is preceded by a
64-byte object header. In L1 pages keep the same order, never encoded.

A page of a STATE group holds `[layer][head][number]`, float32: what the layers have made of all
tokens up to the page's last one. One page tells everything, as if it were a window of one page, so
pages of such a group are matched, locked, evicted and copied as windows are. They are heavy, so
most pages of a chain have none: where a request can be taken up, one was left behind.
"""

from dataclasses import dataclass
from enum import StrEnum

from raydix.errors import ConfigError
from raydix.kernels.pages.page_codec import ENCODED_ALIGNMENT_BYTES, Codec, encoded_head_bytes

OBJECT_HEADER_BYTES = 64
FP8_DTYPE = "float8_e4m3fn"
"""The `KvLayout.dtype` of one byte per number; `kernels/kv_cache/fp8.py` says what is stored."""
STATE_ELEMENT_BYTES = 4
"""States are float32, whatever the model's dtype: they add up what all tokens leave."""


def window_pages(window: int, page_size: int) -> int:
    """Pages before a page boundary that hold a window of `window` tokens.

    The token before the boundary sees all of them, the one behind it no more: a prompt of whole
    pages can be taken up at its last token.
    """
    return -(-window // page_size)


class GroupKind(StrEnum):
    """How far back the layers of a group look."""

    FULL = "full"
    WINDOW = "window"
    LATENT = "latent"
    STATE = "state"


@dataclass(frozen=True, slots=True, kw_only=True)
class KvGroup:
    """Layers, by their index in the model, that cache alike."""

    kind: GroupKind
    layers: tuple[int, ...]
    num_kv_heads: int
    """The heads that ranks may divide among them; of a STATE group those of its keys."""
    head_dim: int
    """The elements of a head's key; of a STATE group the numbers that a head keeps of all tokens.
    """
    window: int | None = None
    """The tokens of a window; for WINDOW only."""

    @property
    def token_elements(self) -> int:
        """Elements that one more token takes in all layers of the group."""
        if self.kind is GroupKind.STATE:
            return 0
        per_head = self.head_dim if self.kind is GroupKind.LATENT else 2 * self.head_dim
        heads = 1 if self.kind is GroupKind.LATENT else self.num_kv_heads
        return len(self.layers) * heads * per_head

    @property
    def state_bytes(self) -> int:
        """Bytes of a page of a STATE group, whatever its tokens; of other groups 0."""
        if self.kind is not GroupKind.STATE:
            return 0
        return len(self.layers) * self.num_kv_heads * self.head_dim * STATE_ELEMENT_BYTES

    def first_seen(self, position: int) -> int:
        """The first position of which the token at `position` needs something cached."""
        match self.kind:
            case GroupKind.FULL | GroupKind.LATENT:
                return 0
            case GroupKind.WINDOW:
                assert self.window is not None, "a WINDOW group has a window"
                return max(0, position - self.window + 1)
            case GroupKind.STATE:
                return max(0, position - 1)

    def reach(self, page_size: int) -> int | None:
        """Pages that hold the window of a prefix's last token; None: all of the prefix.

        Raises ValueError if a WINDOW group has no window.
        """
        if self.kind is GroupKind.STATE:
            return 1
        if self.kind is not GroupKind.WINDOW:
            return None
        if self.window is None:
            raise ValueError(
                f"a WINDOW group of layers {self.layers} has no window; expected a number of tokens"
            )
        return window_pages(self.window, page_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class KvLayout:
    """All that fixes the bytes of a page: with equal layouts, pages of a model interchange."""

    page_size: int
    dtype: str
    """What keys and values are in all tiers, by its name in torch; states have their own."""
    dtype_bytes: int
    groups: tuple[KvGroup, ...]
    codec: Codec = Codec.NONE
    version: int = 1

    def __post_init__(self) -> None:
        """Raises ConfigError if a group cannot be kept in this dtype, or encoded by the codec."""
        if self.dtype == FP8_DTYPE and any(each.kind is GroupKind.LATENT for each in self.groups):
            raise ConfigError(
                "cache.kv_dtype is fp8_e4m3; this model caches latents, which are kept as they are "
                "computed. Set cache.kv_dtype to auto."
            )
        if self.codec is not Codec.NONE:
            for group in self.groups:
                self._require_encodable(group)

    @property
    def has_states(self) -> bool:
        """Whether some layers keep a state of all tokens."""
        return any(group.kind is GroupKind.STATE for group in self.groups)

    @property
    def state_bytes(self) -> int:
        """Bytes that the states of all layers take after one token."""
        return sum(group.state_bytes for group in self.groups)

    @property
    def reaches(self) -> tuple[int | None, ...]:
        """Per group, the pages that hold the window of a prefix's last token; None: all."""
        return tuple([group.reach(self.page_size) for group in self.groups])

    def payload_bytes(self, group: int) -> int:
        """Bytes of one canonical page, as the codec leaves them."""
        kv_group = self.groups[group]
        if kv_group.kind is GroupKind.STATE:
            return kv_group.state_bytes
        if self.codec is Codec.NONE:
            return kv_group.token_elements * self.page_size * self.dtype_bytes
        num_heads = len(kv_group.layers) * kv_group.num_kv_heads
        return num_heads * encoded_head_bytes(self.page_size * kv_group.head_dim)

    def host_page_bytes(self, group: int) -> int:
        """Bytes of one host page: header and payload, rounded up to 64."""
        return -(-(OBJECT_HEADER_BYTES + self.payload_bytes(group)) // 64) * 64

    @property
    def token_bytes(self) -> int:
        """Bytes of KV that one token takes in all groups of L1."""
        return sum(group.token_elements for group in self.groups) * self.dtype_bytes

    def _require_encodable(self, group: KvGroup) -> None:
        if group.kind in (GroupKind.LATENT, GroupKind.STATE):
            what = "latent KV" if group.kind is GroupKind.LATENT else "the states of layers"
            raise ConfigError(
                f"cache.codec is {self.codec}; it cannot encode {what}. Set cache.codec to none."
            )
        if self.page_size * group.head_dim % ENCODED_ALIGNMENT_BYTES:
            raise ConfigError(
                f"cache.codec is {self.codec}; pages of {self.page_size} tokens with a head dim "
                f"of {group.head_dim} "
                f"have {self.page_size * group.head_dim} keys per head, expected a multiple of "
                f"{ENCODED_ALIGNMENT_BYTES}. Set cache.page_size to {ENCODED_ALIGNMENT_BYTES}, or "
                f"cache.codec to none."
            )
