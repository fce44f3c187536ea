"""JSON of `/v1/models`."""

from typing import Literal

from raydix.runtime.server.wire.base import WireAnswer


class Model(WireAnswer):
    """A model that is served."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["raydix"] = "raydix"
    max_model_len: int | None
    """Null while all of its engines are away."""


class Models(WireAnswer):
    """All models that are served."""

    object: Literal["list"] = "list"
    data: list[Model]
