"""The formats of tool calls, and how a checkpoint's own is found."""

from raydix.runtime.api.tool_formats.deepseek import DEEPSEEK
from raydix.runtime.api.tool_formats.glm import GLM
from raydix.runtime.api.tool_formats.harmony import HARMONY
from raydix.runtime.api.tool_formats.hermes import HERMES
from raydix.runtime.api.tool_formats.kimi import KIMI
from raydix.runtime.api.tool_formats.llama import LLAMA
from raydix.runtime.api.tool_formats.minimax import MINIMAX
from raydix.runtime.api.tool_formats.mistral import MISTRAL
from raydix.runtime.api.tool_formats.qwen_coder import QWEN_CODER
from raydix.runtime.api.tool_formats.tool_format import ToolFormat
from raydix.runtime.config.policies import ToolFormatName

TOOL_FORMATS: tuple[ToolFormat, ...] = (
    HARMONY,
    MINIMAX,
    KIMI,
    DEEPSEEK,
    MISTRAL,
    GLM,
    QWEN_CODER,
    HERMES,
    LLAMA,
)
"""The first whose mark a template has is that of its checkpoint."""


def tool_format_of(name: ToolFormatName, chat_template: str | None) -> ToolFormat | None:
    """The format by its name, or by the template if that is `auto`; None: it has none of these."""
    for each in TOOL_FORMATS:
        is_in_template = chat_template is not None and each.template_mark in chat_template
        if each.name is name or (name is ToolFormatName.AUTO and is_in_template):
            return each
    return None
