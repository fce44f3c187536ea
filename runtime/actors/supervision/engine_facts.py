"""What one learns of an engine when it is up, and how its actors are called."""

from dataclasses import dataclass

from raydix.runtime.actors.supervision.spawn import ActorKind
from raydix.runtime.config.kv_layout import KvLayout

NAMESPACE = "raydix"


def actor_name(engine: str, kind: ActorKind, rank: int | None = None) -> str:
    """The Ray name of an engine's actor, such as `raydix:NAME:gpu0`."""
    return f"{NAMESPACE}:{engine}:{kind.value}{'' if rank is None else rank}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """Everything that a client needs to know of a running engine."""

    name: str
    supervisor_pid: int
    client_address: str
    secret: bytes
    model_path: str
    max_model_len: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    layout: KvLayout
    num_pages: int
    """Usable L1 pages per rank."""
    arena_bytes: int | None
    """None without L2."""
