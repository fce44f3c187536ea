"""Section `cache.l3`: one model per storage backend, told apart by `backend`."""

from typing import Annotated, Any, Literal

from pydantic import Field

from raydix.runtime.config_values import Fraction, Seconds, Section, Size


class BoundedL3Section(Section):
    """Base of the backends whose size Raydix itself bounds; the others are bounded by their service."""

    max_bytes: Size = Field(2**30, description="Most bytes of objects, over all models; the least used go.")


class FileL3Section(BoundedL3Section):
    """L3 in files below one folder."""

    backend: Literal["file"]
    path: str = Field(description="Folder of the objects; created if absent. Engines and models may share it.")


class RedisL3Section(Section):
    """L3 in a Redis server, or one that speaks its protocol; its `maxmemory` bounds it."""

    backend: Literal["redis"]
    url: str = Field(
        "redis://127.0.0.1:6379/0", description="redis://[[USER]:PASSWORD@]HOST[:PORT][/DATABASE] or unix:///SOCKET."
    )
    ttl_s: Annotated[int, Field(ge=1)] | None = Field(
        None, description="How long an object is kept after it was written. null: until the server evicts it."
    )
    timeout_s: Annotated[float, Field(gt=0.0)] = Field(
        5.0, description="Longest wait for a search or a deletion; reads and writes bring deadlines of their own."
    )


class FakeL3Section(BoundedL3Section):
    """L3 in the storage actor's memory, slow and faulty at will: for tests."""

    backend: Literal["fake"]
    max_delay_s: Seconds = Field(0.0, description="Fake backend: each object takes a random time of up to this long.")
    failure_fraction: Fraction = Field(0.0, description="Fake backend: part of the operations that end with an error.")
    corrupt_fraction: Fraction = Field(0.0, description="Fake backend: part of the reads that bring wrong bytes.")
    seed: int = Field(0, description="Fake backend: seed of delays and failures.")


class PluginL3Section(Section):
    """L3 in a backend that another package brings, by an entry point of group `raydix.storage`."""

    backend: Literal["plugin"]
    name: str = Field(description="Plugin: name of the entry point.")
    options: dict[str, Any] = Field(default_factory=dict, description="Plugin: what its factory is called with.")


L3Section = Annotated[
    FileL3Section | RedisL3Section | FakeL3Section | PluginL3Section,
    Field(discriminator="backend"),
]
