"""What a client, and whoever starts it, needs to know of a running engine."""

from dataclasses import asdict, dataclass
from typing import Any, Self

from raydix.runtime.actors.engine_record import EngineRecord
from raydix.runtime.config.kv_layout import KvLayout
from raydix.runtime.config.policies import ReasoningFormatName, ToolFormatName


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientFacts:
    """What clients of a running engine check requests against."""

    name: str
    listens_at: str | None = None
    """`HOST:PORT` for clients on other hosts; None: it has none."""
    model_path: str
    fingerprint: str
    """Equal for engines that compute the same of the same tokens, in hexadecimal."""
    max_model_len: int
    vocab_size: int
    max_waiting_requests: int
    eos_token_ids: tuple[int, ...]
    tool_format: ToolFormatName = ToolFormatName.AUTO
    reasoning_format: ReasoningFormatName = ReasoningFormatName.AUTO
    tokenizer: str | None = None
    """Equal for engines with the same tokenizer and chat template; None: it was not looked at."""

    def to_values(self) -> dict[str, Any]:
        """The facts as they travel in an answer to a control call."""
        return asdict(self)

    @classmethod
    def from_values(cls, values: dict[str, Any]) -> Self:
        """What `to_values` gave, tuples being lists by now."""
        typed = {
            "eos_token_ids": tuple(values["eos_token_ids"]),
            "tool_format": ToolFormatName(values["tool_format"]),
            "reasoning_format": ReasoningFormatName(values["reasoning_format"]),
        }
        return cls(**{**values, **typed})


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """All that is known of a running engine once its ranks have loaded."""

    client: ClientFacts
    record: EngineRecord
    """How processes of its host reach it."""
    layout: KvLayout
    num_pages: tuple[int, ...]
    """Usable L1 pages per rank."""
    arena_bytes: int | None
    """None without L2."""
