"""Events of the caches for routers and others: where they are published."""

import ipaddress
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, field_validator, model_validator

from raydix.runtime.config.values import Count, Section

_Port = Annotated[int, Field(ge=0, le=65000)]


class EventsSection(Section):
    """Which pages each tier gets and loses, published over ZMQ as vLLM does."""

    host: str = Field(
        "127.0.0.1",
        description="Address on which events are published. Other than loopback it needs "
        "cache.events.curve: events hold the tokens of prompts, and salts.",
    )
    port: _Port = Field(
        5557,
        description="Port of the first data-parallel rank's events; rank r has port + r. "
        "0: any free ones, which the log names.",
    )
    replay_port: _Port = Field(
        5757,
        description="Port at which the first rank's missed batches are asked for; rank r "
        "has replay_port + r. 0: any free ones.",
    )
    topic: str = Field("", description="Topic of all batches.")
    buffer_batches: Count = Field(
        10_000, description="Latest batches of each rank that are kept for who has missed some."
    )
    max_l3_pages: Count = Field(
        1_000_000,
        description="Most pages of L3 that are told to be there; what was seen there first is "
        "told to be gone.",
    )
    curve: str | None = Field(
        None,
        description="Folder with server.key, server.key_secret and the public keys of "
        "subscribers in clients/, as pyzmq writes them. null: no encryption, loopback alone.",
    )

    @field_validator("curve")
    @classmethod
    def _is_absolute(cls, curve: str | None) -> str | None:
        if curve is not None and not Path(curve).is_absolute():
            raise ValueError(
                f"cache.events.curve is {curve!r}; expected an absolute path, as the engine's "
                "processes have another working directory."
            )
        return curve

    @model_validator(mode="after")
    def _is_loopback_or_encrypted(self) -> Self:
        try:
            is_loopback = ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            raise ValueError(
                f"cache.events.host is {self.host!r}; expected an IP address, such as 127.0.0.1."
            ) from None
        if not is_loopback and self.curve is None:
            raise ValueError(
                f"cache.events.host is {self.host}, which other hosts can reach, and events hold "
                "the tokens of prompts. Set cache.events.curve to a folder of keys, or "
                "cache.events.host to 127.0.0.1."
            )
        return self
