"""How one answer is written: what is reasoned, and then content and calls of tools."""

from dataclasses import dataclass

from raydix.runtime.api.tool_formats.events import Reading
from raydix.runtime.api.tool_formats.incoming import Incoming
from raydix.runtime.api.tool_formats.reasoning import ReasoningFormat
from raydix.runtime.api.tool_formats.tool_format import ToolFormat, Tools


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerFormat:
    """The formats of one answer, of which at least one is given."""

    reasoning: ReasoningFormat | None = None
    """None: reasoning is not told from content."""
    is_open: bool = False
    """Whether the prompt has begun the reasoning."""
    calls: ToolFormat | None = None
    """None: no tools are given, and what looks like a call is content."""
    tools: Tools

    @property
    def gap(self) -> str:
        """What is between content and the first call."""
        return "" if self.calls is None else self.calls.gap

    def read(self, text: Incoming) -> Reading[None]:
        """Read a whole answer."""
        is_split_off = self.calls is None or not self.calls.reads_reasoning
        if self.reasoning is not None and is_split_off:
            yield from self.reasoning.read(text, self.is_open)
        if self.calls is None:
            yield from text.content_until(())
        else:
            yield from self.calls.read(text, self.tools)
