"""Reasoning that stands before an answer, between two marks, and which checkpoints write it."""

from collections.abc import Callable
from dataclasses import dataclass

from raydix.runtime.api.tool_formats.events import (
    Content,
    Reading,
    ReasoningBegun,
    ReasoningEnded,
)
from raydix.runtime.api.tool_formats.harmony import (
    ANALYSIS,
    ANALYSIS_MESSAGE,
    CHANNEL,
    END,
    FINAL,
    read_messages,
)
from raydix.runtime.api.tool_formats.incoming import Incoming
from raydix.runtime.api.tool_formats.kimi import KIMI_MARKS
from raydix.runtime.config.policies import ReasoningFormatName


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningFormat:
    """How a family of models sets reasoning apart."""

    name: ReasoningFormatName
    template_marks: tuple[str, ...]
    """The chat templates of these models have all of them, and those behind it in the table have
    not."""
    marks: tuple[str, ...]
    """What is written around reasoning; the first one begins it, the last one ends it."""
    read: Callable[[Incoming, bool], Reading[None]]
    """Reads reasoning, or a whole answer; whether the prompt has begun the reasoning."""

    around: tuple[str, str] | None = None
    """What an enforced answer has around its reasoning, if that is more than `marks`."""
    around_answer: tuple[str, str] = ("", "")
    """What it has around what follows."""

    def is_open(self, prompt_end: str) -> bool:
        """Whether a prompt that ends so has begun the reasoning, as many templates do."""
        return prompt_end.rstrip().endswith(self.marks[0])

    def is_open_in(self, turn: str) -> bool:
        """Whether a turn with which the model is to go on has begun reasoning, and not ended it."""
        return turn.rfind(self.marks[0]) > turn.rfind(self.marks[-1])


def _tagged(
    name: ReasoningFormatName,
    begin: str,
    end: str,
    *,
    template_marks: tuple[str, ...] | None = None,
    blanks: str = "",
    ends_before: tuple[str, ...] = (),
) -> ReasoningFormat:
    """Reasoning between two marks.

    blanks: what templates write between the marks and the text. ends_before: what ends it, too,
    without being part of it.
    """

    def read(text: Incoming, is_open: bool) -> Reading[None]:
        if not is_open:
            # They are content, unless it was reasoning that they stood before.
            before = yield from text.skip_blanks()
            if not (yield from text.sees(begin)):
                if before:
                    yield Content(before)
                return

        yield from text.takes(begin)
        yield ReasoningBegun()
        yield from text.reasoning_until((end, *ends_before), blanks)
        yield from text.takes(end)
        yield ReasoningEnded()
        yield from text.skip_blanks(blanks)

    return ReasoningFormat(
        name=name,
        template_marks=(end,) if template_marks is None else template_marks,
        marks=(begin, end),
        read=read,
    )


def _read_harmony(text: Incoming, _: bool) -> Reading[None]:
    yield from read_messages(text, takes_calls=False)


_THINK, _THINK_END = "<think>", "</think>"
REASONING_FORMATS: tuple[ReasoningFormat, ...] = (
    ReasoningFormat(
        name=ReasoningFormatName.HARMONY,
        template_marks=(CHANNEL,),
        marks=(ANALYSIS, END),
        read=_read_harmony,
        around=ANALYSIS_MESSAGE,
        around_answer=FINAL,
    ),
    _tagged(ReasoningFormatName.MISTRAL, "[THINK]", "[/THINK]"),
    # A section of calls may come without the end of what was thought.
    _tagged(
        ReasoningFormatName.KIMI,
        _THINK,
        _THINK_END,
        template_marks=(_THINK_END, KIMI_MARKS.section),
        ends_before=(KIMI_MARKS.section,),
    ),
    _tagged(ReasoningFormatName.THINK, _THINK, _THINK_END, blanks="\n"),
)
"""The first whose marks a template has is that of its checkpoint."""


def reasoning_format_of(
    name: ReasoningFormatName, chat_template: str | None
) -> ReasoningFormat | None:
    """The format by its name, or by the template if that is `auto`; None: nothing is split off."""
    for each in REASONING_FORMATS:
        is_in_template = chat_template is not None and all(
            mark in chat_template for mark in each.template_marks
        )
        if each.name is name or (name is ReasoningFormatName.AUTO and is_in_template):
            return each
    return None
