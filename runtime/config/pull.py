"""The section of the configuration that says how pages are exchanged with other nodes."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from raydix.runtime.config.values import Choice, Section


class PullTransport(StrEnum):
    """What carries the pages of other nodes."""

    AUTO = "auto"
    TCP = "tcp"
    NIXL = "nixl"


class PullSection(Section):
    """Pages that other nodes' L2 holds are fetched and not computed, where that is quicker."""

    host: str | None = Field(
        None,
        description="Address of this host by which other nodes reach it. null: Ray's for the node.",
    )
    port: Annotated[int, Field(ge=1, le=65534)] | None = Field(
        None,
        description="Where other nodes ask for pages, which then travel by the port behind it. "
        "null: two free ones.",
    )
    transport: Choice[PullTransport] = Field(
        PullTransport.AUTO,
        description="`tcp`: the holder sends pages. `nixl`: they are read out of its memory by "
        "NIXL (UCX), where both ends have it and links use no TLS; else, and once it has failed, "
        "by TCP. `auto`: nixl if the host has RDMA devices, too; else tcp.",
    )
    streams: Annotated[int, Field(ge=1, le=64)] = Field(
        4,
        description="TCP connections by which pages, or leases of them, come from each node, with "
        "a thread each.",
    )
