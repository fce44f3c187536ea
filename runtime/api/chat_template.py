"""A checkpoint's chat template, and what it expects of messages."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic_core import from_json

from raydix.errors import BadRequest
from raydix.runtime.api.chat_messages import (
    TRIAL_ARGUMENTS,
    template_tools,
    trial_turns,
    with_argument_objects,
    with_reasoning,
    with_text,
    with_text_in_reasoning,
)
from raydix.runtime.api.prompts import is_unicode

_ERRORS = (TypeError, ValueError, LookupError, ArithmeticError, AttributeError)
"""The errors, besides Jinja's own, of a template whose variables are not what it expects."""


class ChatTemplate:
    """The template of one transformers tokenizer. It may be used from several threads.

    Templates differ in what they take; a trial of each shows it, the first time that it matters.
    """

    def __init__(self, wrapped: Any) -> None:
        """`wrapped` is a transformers tokenizer."""
        self._wrapped = wrapped

    @property
    def for_tools(self) -> str | None:
        """The template's own text for conversations with tools; None: there is none."""
        if self._wrapped.chat_template is None:
            return None
        template: str = self._wrapped.get_chat_template(tools=[])
        return template

    def text(
        self, messages: Sequence[Mapping[str, Any]], template_arguments: Mapping[str, Any]
    ) -> str:
        """The prompt of a conversation, as `Tokenizer.encode_chat` says. Raises BadRequest."""
        from jinja2 import TemplateError

        if self._wrapped.chat_template is None:
            raise BadRequest(
                "This checkpoint has no chat template; chat needs one. "
                "Pass a prompt to generate instead."
            )
        if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
            raise BadRequest(
                f"The messages are {messages!r:.80}; expected a list of dicts such as "
                "{'role': 'user', 'content': 'Hello'}."
            )
        turns = [self._turn(message, number) for number, message in enumerate(messages)]

        begins_a_turn = not template_arguments.get("continue_final_message", False)
        options = {"add_generation_prompt": begins_a_turn, **template_arguments}
        if options.get("tools"):
            options["tools"] = template_tools(options["tools"])
        try:
            text: str = self._wrapped.apply_chat_template(turns, **options, tokenize=False)
        except (TemplateError, *_ERRORS) as error:
            reason = str(error).rstrip(".")
            raise BadRequest(f"The chat template refuses these messages: {reason}.") from error
        # Of all that the template has taken from messages, tools and names.
        if not is_unicode(text):
            raise BadRequest(
                "The chat holds half of a surrogate pair, which is no Unicode text. Remove it."
            )
        return text

    def _turn(self, message: Mapping[str, Any], number: int) -> dict[str, Any]:
        """A message as this template takes it. Raises BadRequest."""
        turn = with_text(message, number)
        if turn.get("reasoning_content") or turn.get("reasoning"):
            turn = with_reasoning(turn, number)
        if not turn.get("tool_calls"):
            return turn
        if not self._keeps_arguments:
            turn = with_argument_objects(turn, number)
        if turn.get("content") is None and not self._takes_no_content:
            turn["content"] = ""
        has_both = bool(turn.get("content") and turn.get("thinking"))
        if has_both and not self._takes_reasoning_beside_content:
            turn = with_text_in_reasoning(turn)
        return turn

    @functools.cached_property
    def _keeps_arguments(self) -> bool:
        """Whether the template writes the arguments of an earlier call as they are.

        Other templates want an object, of which they write a JSON of their own.
        """
        text = self._tried(trial_turns(arguments=TRIAL_ARGUMENTS, content=""))
        return text is not None and TRIAL_ARGUMENTS in text

    @functools.cached_property
    def _takes_no_content(self) -> bool:
        """Whether a turn of calls may have None for its content, which others write as a word."""
        text, without = self._trial(content=""), self._trial(content=None)
        return without is not None and (text or "").count("None") == without.count("None")

    @functools.cached_property
    def _takes_reasoning_beside_content(self) -> bool:
        """Whether a turn of calls may have both, which gpt-oss takes for a mistake."""
        return self._trial(content="a", thinking="b") is not None

    def _trial(self, **said: Any) -> str | None:
        arguments = TRIAL_ARGUMENTS if self._keeps_arguments else from_json(TRIAL_ARGUMENTS)
        return self._tried(trial_turns(arguments=arguments, **said))

    def _tried(self, turns: list[dict[str, Any]]) -> str | None:
        """What the template makes of these; None: it refuses them."""
        from jinja2 import TemplateError

        try:
            text: str = self._wrapped.apply_chat_template(turns, tokenize=False)
        except (TemplateError, *_ERRORS):
            return None
        return text
