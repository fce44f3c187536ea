"""What all JSON of the HTTP interface has in common."""

from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from raydix.runtime.api.prompts import is_unicode

T = TypeVar("T")


def is_none(value: object) -> bool:
    """Whether a field is left out of an answer."""
    return value is None


def _require_unicode(text: str) -> str:
    if not is_unicode(text):
        raise ValueError("It holds half of a surrogate pair, which is no Unicode text.")
    return text


Text = Annotated[str, AfterValidator(_require_unicode)]
"""A string that can be tokenised, and sent back: JSON can tell others."""

Nothing = Annotated[list[Any], Field(max_length=0)]
"""An empty list, which asks for nothing; any other one is not supported."""

OrAbsent = Annotated[T | None, Field(exclude_if=is_none)]
"""A field of an answer that is left out where it is None."""


class WireRequest(BaseModel):
    """What a client sends. A field that is not declared is refused; null is as good as absent."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, hide_input_in_errors=True)

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        return {name: value for name, value in values.items() if value is not None}


class WireAnswer(BaseModel):
    """What a client receives."""

    model_config = ConfigDict(frozen=True)
