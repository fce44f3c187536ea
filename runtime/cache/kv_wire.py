"""The form in which KV events go to others: that of vLLM, as ZMQ subscribers read it.

A batch is a msgpack array of time, events and data-parallel rank; an event is a map with its type.
Blocks are pages, and their hashes 64 bits of the page keys.
"""

from collections.abc import Sequence

import msgspec

from raydix.runtime.config.kv_layout import GroupKind, KvGroup
from raydix.runtime.messages.kv_events import Tier

MEDIA = {Tier.L1: "GPU", Tier.L2: "CPU", Tier.L3: "STORAGE"}
_KINDS = {
    GroupKind.FULL: "full_attention",
    GroupKind.LATENT: "mla_attention",
    GroupKind.WINDOW: "sliding_window",
    GroupKind.STATE: "mamba",
}
_HASH_START = 8
"""Where in a short key its hash begins."""


class BlockStored(msgspec.Struct, omit_defaults=True, frozen=True, kw_only=True, tag=True):
    """Blocks that have come, each the parent of the next one."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str
    lora_name: str | None
    extra_keys: list[tuple[str] | None] | None = None
    """The salt with the first block of a chain, where vLLM's consumers look for it."""
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    cache_salt: str | None = None
    """The salt of the whole chain, where SGLang's consumers look for it."""


class BlockRemoved(msgspec.Struct, omit_defaults=True, frozen=True, kw_only=True, tag=True):
    """Blocks that have gone."""

    block_hashes: list[int]
    medium: str
    group_idx: int | None = None


class AllBlocksCleared(msgspec.Struct, omit_defaults=True, frozen=True, kw_only=True, tag=True):
    """All that was told before is void, of all media."""


WireEvent = BlockStored | BlockRemoved | AllBlocksCleared


class EventBatch(msgspec.Struct, array_like=True, frozen=True):
    """Events in their order."""

    ts: float
    events: list[WireEvent]
    data_parallel_rank: int | None


_ENCODER = msgspec.msgpack.Encoder()


def encode_batch(events: Sequence[WireEvent], ts: float, rank: int) -> bytes:
    """The payload of a batch."""
    batch = EventBatch(ts=ts, events=list(events), data_parallel_rank=rank)
    return _ENCODER.encode(batch)


def block_hash(key: bytes) -> int:
    """The hash by which a page, given by its short key, is known on the wire."""
    return int.from_bytes(key[_HASH_START:], "big")


def spec_of(group: KvGroup) -> tuple[str, int | None]:
    """What kind of layers a KV group has, and the tokens of their window."""
    window = group.window if group.kind is GroupKind.WINDOW else None
    return _KINDS[group.kind], window
