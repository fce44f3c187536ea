"""The tools of one chat, whose answers are searched for calls."""

from dataclasses import dataclass

from raydix.errors import BadParameter
from raydix.runtime.api.engine_client import EngineClient
from raydix.runtime.api.tool_formats.table import TOOL_FORMATS, tool_format_of
from raydix.runtime.api.tool_formats.tool_format import ToolFormat, Tools
from raydix.runtime.server.spoken import Spoken
from raydix.runtime.server.wire.chat import ChatRequest
from raydix.runtime.server.wire.tools import check_tool_choice


@dataclass(frozen=True, slots=True)
class ToolsInUse:
    """How calls are written, and of what."""

    tool_format: ToolFormat
    tools: Tools
    max_calls: int | None

    def spoken(self) -> Spoken:
        """What one choice says, which has said nothing yet."""
        return Spoken(self.tool_format, self.tools, self.max_calls)


def tools_in_use(body: ChatRequest, client: EngineClient) -> ToolsInUse | None:
    """The tools that a chat may call; None: there are none.

    With `tool_choice` none the prompt has them nevertheless, as it has in the turns around, whose
    pages serve it. Raises BadParameter for what is not served.
    """
    check_tool_choice(body.tools, body.tool_choice)
    if not body.tools or body.tool_choice == "none":
        return None
    tokenizer = client.texts.tokenizer
    template = None if tokenizer is None else tokenizer.tool_template
    tool_format = tool_format_of(client.limits.tool_format, template)
    if tool_format is None:
        names = ", ".join(each.name for each in TOOL_FORMATS)
        problem = (
            f"cannot be served: the checkpoint's chat template writes calls in none of {names}. "
            "Leave them out, or start the engine with model.tool_format set to the one it uses."
        )
        raise BadParameter("tools", problem)
    return ToolsInUse(
        tool_format=tool_format,
        tools={each.function.name: each.function.parameters or {} for each in body.tools},
        max_calls=None if body.parallel_tool_calls else 1,
    )
