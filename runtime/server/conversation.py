"""A conversation as the chat template takes it, whichever route it came by."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raydix.runtime.api.text_desk import TextDesk
from raydix.runtime.api.tool_formats.tool_format import Tools
from raydix.runtime.server.errors import refused_as
from raydix.runtime.server.wire.chat import TemplateFields, template_arguments
from raydix.runtime.server.wire.messages import Message, template_messages
from raydix.runtime.server.wire.tools import Tool, ToolMode, chosen_tools, template_tools


@dataclass(frozen=True, slots=True, kw_only=True)
class CallChoice:
    """What a request wants of calls."""

    may_call: bool = True
    """False for `tool_choice` none. The prompt has the tools nevertheless, as it has in the turns
    around, whose pages serve it."""
    must_call: bool = False
    """Whether the answer is to be calls, one at least, and nothing else."""
    names: frozenset[str] | None = None
    """The tools that may be called; None: all may."""
    max_calls: int | None = None
    """The calls beyond are not told; None: all are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """What a prompt is made of: the same one on every route that is given the same."""

    messages: Sequence[Mapping[str, Any]]
    variables: Mapping[str, Any]
    """What the template is told besides; `tools` as well, if there are any."""
    tools: Sequence[Tool]
    calls: CallChoice
    field: str
    """The field of the body that is named if the template refuses."""

    @property
    def tool_schemas(self) -> Tools:
        """What the arguments of each tool may be."""
        return {each.function.name: each.function.parameters or {} for each in self.tools}

    @property
    def continued_turn(self) -> str | None:
        """The text of the turn with which the model is to go on; None: it begins one."""
        if not self.variables.get("continue_final_message"):
            return None
        content = self.messages[-1].get("content")
        if isinstance(content, str):
            return content
        return "\n".join(part["text"] for part in content or ())

    async def token_ids(self, desk: TextDesk, tenant: str | None) -> list[int]:
        """The prompt. Raises RequestRefused, which names the field."""
        with refused_as(self.field):
            return await desk.encode_chat(self.messages, self.variables, tenant)


def conversation_of(
    messages: Sequence[Message],
    fields: TemplateFields,
    *,
    field: str,
    calls: CallChoice = CallChoice(),
) -> Conversation:
    """The conversation of these messages. Raises BadParameter for what is no variable."""
    tools = fields.tools or []
    variables = template_arguments(fields)
    if tools:
        variables["tools"] = template_tools(tools)
    return Conversation(
        messages=template_messages(messages),
        variables=variables,
        tools=tools,
        calls=calls,
        field=field,
    )


def call_choice(
    tools: Sequence[Tool] | None, tool_choice: str | dict[str, Any] | None, *, is_parallel: bool
) -> CallChoice:
    """The choice of a chat's `tool_choice`. Raises BadParameter for what is not served."""
    mode, names = chosen_tools(tools, tool_choice)
    is_single = not is_parallel or mode is ToolMode.NAMED
    return CallChoice(
        may_call=mode is not ToolMode.NONE,
        must_call=mode in (ToolMode.REQUIRED, ToolMode.NAMED),
        names=names,
        max_calls=1 if is_single else None,
    )
