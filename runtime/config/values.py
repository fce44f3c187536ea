"""What all sections of the configuration are made of."""

import re
from enum import StrEnum
from typing import Annotated, Any, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    SerializationInfo,
    field_validator,
)
from pydantic_core import PydanticCustomError

_UNITS = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}
_SIZE_TEXT = r"^\s*(\d+(?:\.\d+)?)\s*([KMGTkmgt]?[Bb]|[KMGTkmgt][Ii][Bb]|)\s*$"


def parse_size(value: object) -> object:
    """Turn `64MiB` into bytes; what is no text passes as it is.

    Raises PydanticCustomError for other text.
    """
    if not isinstance(value, str):
        return value
    match = re.fullmatch(_SIZE_TEXT, value)
    if match is None:
        raise PydanticCustomError(
            "size", "expected bytes or a number with a unit, such as 64MiB or 1GiB"
        )
    return int(float(match[1]) * _UNITS[match[2].upper()])


_PASSWORD = re.compile(r"(://)[^/@\s]*@")
WITH_SECRETS = {"with_secrets": True}
"""The context in which a section is written with its secrets, for another process."""


def without_passwords(text: str) -> str:
    """Text for people: of each URL in it, user and password are left out."""
    return _PASSWORD.sub(r"\1...@", text)


def shortened(value: object, max_chars: int = 200) -> str:
    """A value as text of one line without passwords, whose end is left out if it is long."""
    text = without_passwords(repr(value))
    return text if len(text) <= max_chars else f"{text[:max_chars]} ..."


def _hidden(value: Any, info: SerializationInfo) -> Any:
    """What is written of a value that may be secret: whatever it holds that tells none."""
    if (info.context or {}).get("with_secrets"):
        return value
    if isinstance(value, dict):
        return dict.fromkeys(value, "...")
    return without_passwords(str(value))


SecretUrl = Annotated[str, PlainSerializer(_hidden), Field(repr=False)]
"""A URL that may hold a password, which is neither shown nor written down."""
SecretOptions = Annotated[dict[str, Any], PlainSerializer(_hidden), Field(repr=False)]
"""Options for somebody else's code: there may be secrets among their values."""

_Names = TypeVar("_Names", bound=StrEnum)


def _on_or_off(value: object) -> object:
    """YAML reads a bare on or off as a boolean."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return value


Choice = Annotated[_Names, Field(strict=False), BeforeValidator(_on_or_off)]
"""One of an enum's names: YAML has text for it, which strict models refuse elsewhere."""
Count = Annotated[int, Field(ge=1)]
_SizeText = Annotated[str, Field(pattern=_SIZE_TEXT)]
Size = Annotated[Count, BeforeValidator(parse_size, json_schema_input_type=Count | _SizeText)]
"""Bytes; the JSON schema, too, accepts both ways to write them."""
Seconds = Annotated[float, Field(ge=0.0)]
Port = Annotated[int, Field(ge=1, le=65535)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]


def _has_surrogate(text: str) -> bool:
    return any("\ud800" <= each <= "\udfff" for each in text)


class Section(BaseModel):
    """Base of all sections: frozen, exact types, no unknown keys."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=()
    )

    @field_validator("*")
    @classmethod
    def _without_nul(cls, value: object) -> object:
        # No path, address or name may have one: whoever uses it first would fail, far from here.
        if isinstance(value, str) and "\0" in value:
            raise PydanticCustomError("nul", "expected text without the character NUL")
        if isinstance(value, str) and not value.isascii() and _has_surrogate(value):
            raise PydanticCustomError("unicode", "expected text without half a surrogate pair")
        return value
