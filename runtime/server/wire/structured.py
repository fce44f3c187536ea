"""JSON of what an answer has to be, by OpenAI's names and by vLLM's."""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from raydix.errors import BadParameter
from raydix.runtime.api.structured_outputs import MAX_CHOICES, StructuredOutputs
from raydix.runtime.server.wire.base import Items, Table, Text, WireRequest


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
    json_schema: Annotated[Table[Text, Any], Field(alias="schema")]
    strict: bool | None = None


class SchemaFormat(WireRequest):
    """JSON of a schema."""

    type: Literal["json_schema"]
    json_schema: NamedSchema


class FlatSchemaFormat(NamedSchema):
    """JSON of a schema, as `/v1/responses` and Anthropic's interface have it."""

    type: Literal["json_schema"]


class TagFormat(WireRequest):
    """Text with a structural tag of xgrammar, as in vLLM."""

    type: Literal["structural_tag"]
    format: Table[Text, Any]


_TAGS = {
    "text": "any text",
    "json_object": "an object",
    "json_schema": "a schema",
    "structural_tag": "a structural tag",
}
"""No tag can be taken for the name of a field, so that errors name places of the request alone."""


def _tag_of(asked: Any) -> str | None:
    kind = asked.get("type") if isinstance(asked, dict) else None
    return _TAGS.get(kind) if isinstance(kind, str) else None


def _by_type(*kinds: str) -> Discriminator:
    expected = f"Input should be an object of type {', '.join(map(repr, kinds))}"
    return Discriminator(_tag_of, custom_error_type="unknown_format", custom_error_message=expected)


_Text = Annotated[TextFormat, Tag(_TAGS["text"])]
_Object = Annotated[ObjectFormat, Tag(_TAGS["json_object"])]
ResponseFormat = Annotated[
    _Text
    | _Object
    | Annotated[SchemaFormat, Tag(_TAGS["json_schema"])]
    | Annotated[TagFormat, Tag(_TAGS["structural_tag"])],
    _by_type(*_TAGS),
]


FlatFormat = Annotated[
    _Text | _Object | Annotated[FlatSchemaFormat, Tag(_TAGS["json_schema"])],
    _by_type("text", "json_object", "json_schema"),
]
"""The same, without a name between a format and its schema."""


class StructuredFields(WireRequest):
    """One of these, as in vLLM."""

    json_schema: Annotated[Text | Table[Text, Any] | None, Field(alias="json")] = None
    json_object: bool = False
    regex: Text | None = None
    choice: Annotated[Items[Text], Field(max_length=MAX_CHOICES)] | None = None
    grammar: Text | None = None
    structural_tag: Text | Table[Text, Any] | None = None


def structured_of(
    asked: StructuredOutputs | None, fields: StructuredFields | None
) -> StructuredOutputs | None:
    """What the answer has to be; None: it is free. Raises BadParameter.

    asked: what the field of the route's own interface asks for.
    """
    if fields is None:
        return asked
    if asked is not None:
        problem = "is set beside structured_outputs; they name one thing. Set one of them."
        raise BadParameter(asked.parameter, problem)
    return StructuredOutputs.of(fields.model_dump(by_alias=True))


def structured_of_format(
    asked: ResponseFormat | FlatFormat | None, parameter: str
) -> StructuredOutputs | None:
    """What a format asks for; None: nothing. `parameter`: the field that has it.

    Raises BadParameter.
    """
    match asked:
        case None | TextFormat():
            return None
        case ObjectFormat():
            return StructuredOutputs(json_object=True, parameter=parameter)
        case SchemaFormat():
            return StructuredOutputs(json=asked.json_schema.json_schema, parameter=parameter)
        case FlatSchemaFormat():
            return StructuredOutputs(json=asked.json_schema, parameter=parameter)
        case TagFormat():
            return StructuredOutputs(structural_tag=asked.model_dump(), parameter=parameter)
