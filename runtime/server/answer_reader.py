"""How the answers of one request are read: by its tools, and by how its model reasons."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from raydix.errors import BadParameter
from raydix.runtime.api.engine_client import EngineClient
from raydix.runtime.api.sampling_params import SamplingParams
from raydix.runtime.api.tokenizer import Tokenizer
from raydix.runtime.api.tool_formats.answer_format import AnswerFormat
from raydix.runtime.api.tool_formats.reasoning import ReasoningFormat, reasoning_format_of
from raydix.runtime.api.tool_formats.table import TOOL_FORMATS, tool_format_of
from raydix.runtime.api.tool_formats.tool_format import ToolFormat
from raydix.runtime.server.conversation import Conversation
from raydix.runtime.server.spoken import Spoken

_PROMPT_END_TOKENS = 32
"""The last tokens of a prompt, in which a template may have begun the reasoning; byte-level
tokenizers need many for that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerReader:
    """What reads the answers of one request."""

    tokenizer: Tokenizer
    answer_format: AnswerFormat
    max_calls: int | None
    tells_reasoning: bool
    tells_content: bool
    """False if answers are calls and nothing else."""

    def spoken(self) -> Spoken:
        """What one choice says, which has said nothing yet."""
        return Spoken(
            self.answer_format,
            self.tokenizer.token_bytes,
            max_calls=self.max_calls,
            tells_reasoning=self.tells_reasoning,
            tells_content=self.tells_content,
        )

    def sampling(self, params: SamplingParams) -> SamplingParams:
        """The same, but that special tokens are part of the text where they mark something.

        In most vocabularies what marks a call is special; what marks reasoning is in few.
        """
        reasoning = self.answer_format.reasoning
        marks = () if reasoning is None else reasoning.marks
        if self.answer_format.calls is None and not any(map(self.tokenizer.is_special, marks)):
            return params
        return replace(params, skip_special_tokens=False)


def answer_reader(
    client: EngineClient,
    conversation: Conversation,
    prompt: Sequence[int],
    *,
    tells_reasoning: bool,
) -> AnswerReader | None:
    """What reads the answers to a prompt; None: they are content and nothing else.

    prompt: the conversation's tokens. Raises BadParameter if the model's way of writing calls is
    not known.
    """
    tokenizer = client.texts.tokenizer
    assert tokenizer is not None, "it has tokenised the prompt"
    template, calls = tokenizer.tool_template, None
    if conversation.tools and conversation.calls.may_call:
        calls = _tool_format(client, template)
    reasoning = reasoning_format_of(client.limits.reasoning_format, template)
    if reasoning is None and calls is None:
        return None

    answer_format = AnswerFormat(
        reasoning=reasoning,
        is_open=reasoning is not None and _is_open(reasoning, tokenizer, conversation, prompt),
        calls=calls,
        tools=conversation.tool_schemas,
    )
    return AnswerReader(
        tokenizer=tokenizer,
        answer_format=answer_format,
        max_calls=conversation.calls.max_calls,
        tells_reasoning=tells_reasoning,
        tells_content=not conversation.calls.must_call,
    )


def _tool_format(client: EngineClient, template: str | None) -> ToolFormat:
    found = tool_format_of(client.limits.tool_format, template)
    if found is None:
        names = ", ".join(each.name for each in TOOL_FORMATS)
        problem = (
            f"cannot be served: the checkpoint's chat template writes calls in none of {names}. "
            "Leave them out, or start the engine with model.tool_format set to the one it uses."
        )
        raise BadParameter("tools", problem)
    return found


def _is_open(
    reasoning: ReasoningFormat,
    tokenizer: Tokenizer,
    conversation: Conversation,
    prompt: Sequence[int],
) -> bool:
    """Whether the prompt has begun the reasoning."""
    if (turn := conversation.continued_turn) is not None:
        return reasoning.is_open_in(turn)
    end = tokenizer.decode(prompt[-_PROMPT_END_TOKENS:], skip_special_tokens=False)
    return reasoning.is_open(end)
