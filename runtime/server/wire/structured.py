"""JSON of what an answer has to be, by OpenAI's names and by vLLM's."""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field

from raydix.errors import BadParameter
from raydix.runtime.api.structured_outputs import MAX_CHOICES, StructuredOutputs
from raydix.runtime.server.wire.base import Items, Table, Text, WireRequest

RESPONSE_FORMAT = "response_format"


class TextFormat(WireRequest):
    """Text of any form."""

    type: Literal["text"]


class ObjectFormat(WireRequest):
    """Any JSON object."""

    type: Literal["json_object"]


class NamedSchema(WireRequest):
    """A JSON schema. It is enforced with `strict` and without."""

    name: Text | None = None
    description: Text | None = None
    json_schema: Annotated[Table[Text, Any], Field(alias="schema")] = Field(default_factory=dict)
    strict: bool | None = None


class SchemaFormat(WireRequest):
    """JSON of a schema."""

    type: Literal["json_schema"]
    json_schema: NamedSchema


class TagFormat(WireRequest):
    """Text with a structural tag of xgrammar, as in vLLM."""

    type: Literal["structural_tag"]
    format: Table[Text, Any]


ResponseFormat = Annotated[
    TextFormat | ObjectFormat | SchemaFormat | TagFormat, Discriminator("type")
]


class StructuredFields(WireRequest):
    """One of these, as in vLLM."""

    json_schema: Annotated[Text | Table[Text, Any] | None, Field(alias="json")] = None
    json_object: bool = False
    regex: Text | None = None
    choice: Annotated[Items[Text], Field(max_length=MAX_CHOICES)] | None = None
    grammar: Text | None = None
    structural_tag: Text | Table[Text, Any] | None = None


def structured_of(
    response_format: ResponseFormat | None, fields: StructuredFields | None
) -> StructuredOutputs | None:
    """What the answer has to be; None: it is free. Raises BadParameter."""
    asked = _of_format(response_format)
    if fields is None:
        return asked
    if asked is not None:
        problem = "is set beside structured_outputs; they name one thing. Set one of them."
        raise BadParameter(RESPONSE_FORMAT, problem)
    return StructuredOutputs.of(fields.model_dump(by_alias=True))


def _of_format(response_format: ResponseFormat | None) -> StructuredOutputs | None:
    match response_format:
        case None | TextFormat():
            return None
        case ObjectFormat():
            return StructuredOutputs(json_object=True, parameter=RESPONSE_FORMAT)
        case SchemaFormat():
            schema = response_format.json_schema.json_schema
            return StructuredOutputs(json=schema, parameter=RESPONSE_FORMAT)
        case TagFormat():
            tag = response_format.model_dump()
            return StructuredOutputs(structural_tag=tag, parameter=RESPONSE_FORMAT)
