"""What the Supervisor and a GPU actor tell each other. Imports no torch: the Supervisor has none."""

from dataclasses import dataclass

from raydix.runtime.config.kv_layout import KvLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFacts:
    """What a GPU actor knows once its model is loaded."""

    pid: int
    device: str
    fingerprint: bytes
    """32 bytes: equal on ranks whose KV pages are interchangeable."""
    layout: KvLayout
    num_pages: int
    """Usable L1 pages."""
    weight_bytes: int
    max_position_embeddings: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSetup:
    """What a GPU actor starts with."""

    scheduler_address: str
    secret: bytes
