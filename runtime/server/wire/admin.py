"""JSON of the admin's routes."""

from typing import Annotated, Any

from pydantic import Field

from raydix.runtime.server.wire.base import WireRequest


class FlushRequest(WireRequest):
    """What is dropped: L1 and L2, and with `l3` this engine's stored objects, too."""

    l3: bool = False
    model: str | None = None
    """The name of the model whose engines do it, where several are served."""


class SleepRequest(WireRequest):
    """What goes: the memory of KV pages, and with `weights` that of the weights, too."""

    weights: bool = False
    model: str | None = None


class WakeRequest(WireRequest):
    """The model whose engines are to wake."""

    model: str | None = None


class AttachRequest(WireRequest):
    """The backend to use from now on, as `cache.l3` of a configuration."""

    l3: Annotated[dict[str, Any], Field(min_length=1)]
    model: str | None = None
