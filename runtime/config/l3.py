"""Section `cache.l3`: one model per storage backend, told apart by `backend`."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Union

from pydantic import (
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    TypeAdapter,
    ValidatorFunctionWrapHandler,
)
from pydantic_core import CoreSchema, core_schema

from raydix.runtime.config.evictions import L3Eviction
from raydix.runtime.config.policies import EvictionPolicy
from raydix.runtime.config.storage_plugins import backend_of, find_plugin
from raydix.runtime.config.store_section import StoreSection
from raydix.runtime.config.values import (
    Fraction,
    Seconds,
    SecretOptions,
    SecretUrl,
    Section,
    Size,
)


class BoundedL3Section(StoreSection):
    """Base of the backends that Raydix itself bounds; the others are bounded by their service."""

    max_bytes: Size = Field(
        2**30, description="Most bytes of objects, over all models; the least used go."
    )
    eviction: L3Eviction = Field(EvictionPolicy.LRU, description="Which objects go first.")


Access = Annotated[
    Literal["owner", "group"],
    Field(description="Who may read, write and delete objects besides their owner."),
]


class FolderL3Section(BoundedL3Section):
    """Base of the backends that keep objects in a folder of the host."""

    path: str = Field(
        description="Folder of the objects; created if absent. Engines and models may share it."
    )


class FileL3Section(FolderL3Section):
    """L3 in files below one folder."""

    backend: Literal["file"]
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


_OWN = (
    FileL3Section,
    RedisL3Section,
    S3L3Section,
    MooncakeL3Section,
    FakeL3Section,
    PluginL3Section,
)
_OWN_NAMES = [backend_of(section) for section in _OWN]


class _OwnOrPlugin:
    """Reads a section whose backend Raydix has itself, or an installed plugin.

    The JSON schema knows the own ones alone, and accepts any keys beside another backend's name.
    """

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_wrap_validator_function(
            _read,
            handler.generate_schema(_told_apart(_OWN)),
            # A section is written by its own class, whoever has defined it.
            serialization=core_schema.wrap_serializer_function_ser_schema(
                lambda value, write: write(value), schema=core_schema.any_schema()
            ),
        )

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        plugin = {
            "title": "L3 of a plugin",
            "type": "object",
            "properties": {"backend": {"type": "string", "not": {"enum": _OWN_NAMES}}},
            "required": ["backend"],
        }
        return {"oneOf": [*handler(schema)["oneOf"], plugin]}


def _told_apart(sections: tuple[type[Section], ...]) -> Any:
    return Annotated[Union[sections], Field(discriminator="backend")]  # noqa: UP007


def _read(value: Any, read_own: ValidatorFunctionWrapHandler) -> Any:
    """The section that a mapping describes, by the plugin that it names if that is none of ours."""
    if isinstance(value, StoreSection):
        return value
    name = value.get("backend") if isinstance(value, Mapping) else None
    plugin = find_plugin(name) if isinstance(name, str) and name not in _OWN_NAMES else None
    if plugin is None:
        return read_own(value)  # it refuses a name that nobody has
    # Beside the own ones, so that errors say where they are as theirs do.
    return TypeAdapter(_told_apart((*_OWN, plugin.section))).validate_python(value)


L3Section = Annotated[
    FileL3Section
    | RedisL3Section
    | S3L3Section
    | MooncakeL3Section
    | FakeL3Section
    | PluginL3Section
    | StoreSection,
    _OwnOrPlugin(),
]
"""Any backend's. `StoreSection` stands for those of plugins."""
