"""What a client, and whoever starts it, needs to know of a running engine."""

from dataclasses import asdict, dataclass, field
from typing import Any, Self

from raydix.runtime.config.kv_layout import KvLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientFacts:
    """Where a running engine is reached, and what its clients check requests against."""

    name: str
    client_address: str
    """The Scheduler's."""
    control_address: str
    """The Supervisor's."""
    secret: bytes = field(repr=False)
    model_path: str
    max_model_len: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]

    def to_values(self) -> dict[str, Any]:
        """As they travel in an answer to a control call."""
        return asdict(self)

    @classmethod
    def from_values(cls, values: dict[str, Any]) -> Self:
        """What `to_values` gave, tuples being lists by now."""
        return cls(**{**values, "eos_token_ids": tuple(values["eos_token_ids"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """All that is known of a running engine once its ranks have loaded."""

    client: ClientFacts
    layout: KvLayout
    num_pages: tuple[int, ...]
    """Usable L1 pages per rank."""
    arena_bytes: int | None
    """None without L2."""
