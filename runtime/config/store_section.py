"""What sections `cache.l3` of all backends have in common."""

from typing import Annotated, ClassVar

from pydantic import Field

from raydix.runtime.config.values import Section


class StoreSection(Section):
    """Base of all backends, those that plugins bring among them."""

    arena_folder: ClassVar[str | None] = None
    """The folder in which the arena needs a name, where a client maps it by name; None: no name."""

    backend: str
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
