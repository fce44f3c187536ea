"""Section `cache.l3`: one model per storage backend, told apart by `backend`."""

from typing import Annotated, Literal

from pydantic import Field

from raydix.runtime.config.evictions import UnlearnedEviction
from raydix.runtime.config.policies import EvictionPolicy
from raydix.runtime.config.values import (
    Fraction,
    Seconds,
    SecretOptions,
    SecretUrl,
    Section,
    Size,
)


class StoreSection(Section):
    """Base of all backends."""

    lazy: bool = Field(
        False,
        description="true: start and attach also while the store does not answer, "
        "and use it once it does.",
    )
    patience_s: Annotated[float, Field(gt=0.0)] = Field(
        10.0,
        description="Longest time that an answer may take: the deadline of a read or write. "
        "A store whose answers take longer is left alone.",
    )


class BoundedL3Section(StoreSection):
    """Base of the backends that Raydix itself bounds; the others are bounded by their service."""

    max_bytes: Size = Field(
        2**30, description="Most bytes of objects, over all models; the least used go."
    )
    eviction: UnlearnedEviction = Field(EvictionPolicy.LRU, description="Which objects go first.")


Access = Annotated[
    Literal["owner", "group"],
    Field(description="Who may read, write and delete objects besides their owner."),
]


class FileL3Section(BoundedL3Section):
    """L3 in files below one folder."""

    backend: Literal["file"]
    path: str = Field(
        description="Folder of the objects; created if absent. Engines and models may share it."
    )
    access: Access = "owner"


class RedisL3Section(StoreSection):
    """L3 in a Redis server, or one that speaks its protocol; its `maxmemory` bounds it."""

    backend: Literal["redis"]
    url: SecretUrl = Field(
        "redis://127.0.0.1:6379/0",
        description="redis://[[USER]:PASSWORD@]HOST[:PORT][/DATABASE] or unix:///SOCKET.",
    )
    ttl_s: Annotated[int, Field(ge=1)] | None = Field(
        None,
        description="How long an object is kept after it was written. "
        "null: until the server evicts it.",
    )
    timeout_s: Annotated[float, Field(gt=0.0)] = Field(
        5.0,
        description="Longest wait when asked whether objects exist, or to delete them; "
        "reads and writes bring deadlines of their own.",
    )


class S3L3Section(StoreSection):
    """L3 in a bucket of S3 or of a service that speaks its protocol; lifecycle rules bound it."""

    backend: Literal["s3"]
    bucket: str = Field(description="S3: name of the bucket, which must exist.")
    prefix: str = Field("raydix", description="S3: what the names of all objects begin with.")
    endpoint: str | None = Field(
        None, description="S3: URL of another service than AWS. null: AWS, or AWS_ENDPOINT."
    )
    region: str | None = Field(
        None, description="S3: null: AWS_REGION. Credentials too come from AWS_ variables."
    )
    timeout_s: Annotated[float, Field(gt=0.0)] = Field(
        10.0, description="S3: longest time of one request."
    )


class MooncakeL3Section(StoreSection):
    """L3 in the memory that the clients of a Mooncake master lend it; the master evicts."""

    backend: Literal["mooncake"]
    master: str = Field(
        "127.0.0.1:50051", pattern=r"^.+:\d+$", description="Mooncake: HOST:PORT of the master."
    )
    metadata: str = Field(
        "P2PHANDSHAKE",
        description="Mooncake: address of the metadata service, if not the clients themselves.",
    )
    host: str | None = Field(
        None,
        description="Mooncake: this node's address for other clients. "
        "null: the one that reaches the master.",
    )
    protocol: Literal["tcp", "rdma"] = Field("tcp", description="Mooncake: how bytes travel.")
    devices: str = Field("", description="Mooncake: RDMA devices, separated by commas.")
    segment_bytes: Size | None = Field(
        None,
        description="Mooncake: memory that each node lends; "
        "its objects go with the storage actor. null: none.",
    )


class Hf3fsL3Section(BoundedL3Section):
    """L3 in slab files on a mounted 3FS, without its FUSE client's copies."""

    backend: Literal["hf3fs"]
    path: str = Field(
        description="3FS: folder on a mount, created if absent; one engine at a time uses it."
    )


class NixlL3Section(BoundedL3Section):
    """L3 in files below one folder, moved by NIXL."""

    backend: Literal["nixl"]
    path: str = Field(description="NIXL: folder of the objects, laid out as by backend `file`.")
    access: Access = "owner"
    plugin: str = Field("POSIX", description="NIXL: the plugin for files.")
    plugin_options: dict[str, str] = Field(
        default_factory=lambda: {"use_uring": "true"},
        description="NIXL: what the plugin is started with.",
    )


class AibrixL3Section(BoundedL3Section):
    """L3 in a RocksDB folder, through AIBrix's connector."""

    backend: Literal["aibrix"]
    path: str = Field(description="AIBrix: folder of the database, for one engine at a time.")
    ttl_s: Annotated[int, Field(ge=1)] = Field(
        7 * 24 * 3600,
        description="AIBrix: objects older than this go when the database is compacted.",
    )


class FakeL3Section(BoundedL3Section):
    """L3 in the storage actor's memory, slow and faulty at will: for tests."""

    backend: Literal["fake"]
    max_delay_s: Seconds = Field(
        0.0, description="Fake backend: each object takes a random time of up to this long."
    )
    latency_s: Seconds = Field(
        0.0, description="Fake backend: delay of each batch and each `exists`."
    )
    max_bytes_per_s: Size | None = Field(
        None,
        description="Fake backend: bandwidth of all reads and writes together. null: unbounded.",
    )
    failure_fraction: Fraction = Field(
        0.0, description="Fake backend: part of the operations that end with an error."
    )
    corrupt_fraction: Fraction = Field(
        0.0, description="Fake backend: part of the reads that bring wrong bytes."
    )
    seed: int = Field(0, description="Fake backend: seed of delays and failures.")


class PluginL3Section(StoreSection):
    """L3 in a backend that another package brings, by an entry point of group `raydix.storage`."""

    backend: Literal["plugin"]
    name: str = Field(description="Plugin: name of the entry point.")
    options: SecretOptions = Field(
        default_factory=dict, description="Plugin: what its factory is called with."
    )


L3Section = Annotated[
    FileL3Section
    | RedisL3Section
    | S3L3Section
    | Hf3fsL3Section
    | MooncakeL3Section
    | NixlL3Section
    | AibrixL3Section
    | FakeL3Section
    | PluginL3Section,
    Field(discriminator="backend"),
]
