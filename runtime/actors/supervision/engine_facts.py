"""What a client needs to know of a running engine."""

from dataclasses import dataclass

from raydix.runtime.config.kv_layout import KvLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """Where a running engine is reached, what it serves and what it holds."""

    name: str
    supervisor_pid: int
    client_address: str
    secret: bytes
    model_path: str
    max_model_len: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    layout: KvLayout
    num_pages: tuple[int, ...]
    """Usable L1 pages per rank."""
    arena_bytes: int | None
    """None without L2."""
