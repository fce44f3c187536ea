"""The shapes in which a prompt may be given, and the checks that need no engine."""

import contextlib
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from raydix.errors import BadParameter, BadRequest, PromptTooLong
from raydix.runtime.messages.arrays import Int32Array, int32_array

TokenIds = Sequence[int] | NDArray[np.integer[Any]]
Prompt = str | TokenIds | Mapping[str, Any]
"""A prompt: text, token ids, `{"prompt": text}`, `{"prompt_token_ids": ids}`, or a conversation:
`{"messages": [...]}`, perhaps with `tools` and `chat_template_kwargs`."""

_SHAPES = (
    "a str, a list of token ids, {'prompt': str}, {'prompt_token_ids': [...]} or "
    "{'messages': [...]}, which may have 'tools' and 'chat_template_kwargs', too"
)


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """A prompt to be tokenised."""

    text: str


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """A prompt as token ids, not yet checked against the model."""

    token_ids: TokenIds


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A conversation to be written out by the chat template, and tokenised."""

    messages: Sequence[Mapping[str, Any]]
    template_arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TokenizedPrompt:
    """A prompt that was checked against the model."""

    text: str | None
    """The text as the caller gave it; None where the caller gave token ids."""
    token_ids: Int32Array


def read_prompt(prompt: Prompt) -> TextPrompt | TokenPrompt | ChatPrompt:
    """Tell text, token ids and a conversation from each other.

    Raises BadRequest for any other shape, and for text that is not Unicode.
    """
    if isinstance(prompt, str):
        return _read_text(prompt)
    if isinstance(prompt, Mapping):
        return _read_mapping(prompt)
    if _is_ids(prompt):
        if isinstance(prompt, Sequence) and prompt and isinstance(prompt[0], Mapping):
            raise BadRequest(
                "The prompt is a list of messages; a conversation is {'messages': [...]}. Write it "
                "so, or call chat."
            )
        return TokenPrompt(prompt)
    raise BadRequest(f"The prompt is a {type(prompt).__name__}; expected {_SHAPES}.")


def is_text(prompt: object) -> bool:
    """Whether a prompt, be it right otherwise, has to be tokenised."""
    return (
        isinstance(prompt, str)
        or is_chat(prompt)
        or (isinstance(prompt, Mapping) and "prompt" in prompt)
    )


def is_chat(prompt: object) -> bool:
    """Whether a prompt, be it right otherwise, is a conversation."""
    return isinstance(prompt, Mapping) and "messages" in prompt


def is_unicode(text: str) -> bool:
    """Whether a text can be encoded: half of a surrogate pair cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _read_text(text: str) -> TextPrompt:
    if not is_unicode(text):
        raise BadRequest(
            "The prompt holds half of a surrogate pair, which is no Unicode text. Remove it."
        )
    return TextPrompt(text)


def _is_ids(value: object) -> TypeGuard[TokenIds]:
    return isinstance(value, Sequence | np.ndarray) and not isinstance(
        value, str | bytes | bytearray
    )


def _read_mapping(prompt: Mapping[str, Any]) -> TextPrompt | TokenPrompt | ChatPrompt:
    if is_chat(prompt) and prompt.keys() <= {"messages", "tools", "chat_template_kwargs"}:
        variables = variables_of(prompt.get("chat_template_kwargs"))
        if prompt.get("tools"):
            variables["tools"] = prompt["tools"]
        return ChatPrompt(prompt["messages"], variables)
    if len(prompt) == 1:
        name, value = next(iter(prompt.items()))
        if name == "prompt" and isinstance(value, str):
            return _read_text(value)
        if name == "prompt_token_ids" and _is_ids(value):
            return TokenPrompt(value)
    raise BadRequest(f"The prompt is a dict with {sorted(map(str, prompt))}; expected {_SHAPES}.")


def _as_array(token_ids: TokenIds) -> NDArray[Any]:
    """The token ids as an array, if numpy takes them. Raises ValueError as numpy does."""
    if isinstance(token_ids, list) and token_ids and type(token_ids[0]) is int:
        # Nearly every prompt, in less than half of numpy's time, which the first token waits for.
        # A tensor of several numbers raises TypeError where an integer is wanted.
        with contextlib.suppress(struct.error, TypeError):
            packed = struct.pack(f"={len(token_ids)}i", *token_ids)
            return np.frombuffer(packed, dtype=np.int32)
    return np.asarray(token_ids)


def check_token_ids(token_ids: TokenIds, vocab_size: int, max_model_len: int) -> Int32Array:
    """The prompt as an int32 array.

    Raises BadRequest if it is empty or has an id outside [0, vocab_size), and PromptTooLong if it
    leaves no room for one token in `max_model_len`.
    """
    if not isinstance(token_ids, np.ndarray):
        # First of all: to copy a huge one may take more memory than there is.
        _require_room(len(token_ids), max_model_len)
    try:
        array = _as_array(token_ids)
    except ValueError as error:
        raise BadRequest(f"The prompt is no flat list of token ids ({error}).") from error

    if array.size == 0:
        raise BadRequest("The prompt is empty; expected at least one token.")
    # numpy holds ints of more than 64 bits as objects.
    has_ints = array.dtype.kind in "iu" or all(type(each) is int for each in array.flat)
    if array.ndim != 1 or not has_ints:
        raise BadRequest(
            f"The prompt holds {array.dtype} values in {array.ndim} dimensions; "
            "expected a list of ints."
        )

    lowest, highest = int(array.min()), int(array.max())
    if lowest < 0 or highest >= vocab_size:
        wrong = lowest if lowest < 0 else highest
        raise BadRequest(
            f"The prompt has token id {wrong}; expected ids from 0 to {vocab_size - 1}."
        )
    _require_room(len(array), max_model_len)
    return int32_array(array)


def longer_than(max_model_len: int) -> PromptTooLong:
    """The refusal of a text that is too long; its length is unknown, as it was not read whole."""
    return _too_long(f"more than {max_model_len}", max_model_len)


def _require_room(num_tokens: int, max_model_len: int) -> None:
    if num_tokens >= max_model_len:
        raise _too_long(str(num_tokens), max_model_len)


def _too_long(number: str, max_model_len: int) -> PromptTooLong:
    return PromptTooLong(
        f"The prompt has {number} tokens; expected at most {max_model_len - 1}, as the model's "
        f"context is {max_model_len} tokens and one must be left for output. "
        "Shorten the prompt; what bounds the context are model.max_model_len, the model and the "
        "pages of cache.l1."
    )


def variables_of(given: object) -> dict[str, Any]:
    """A template's variables beside the messages. Raises BadParameter unless they are a dict."""
    if given is None:
        return {}
    if (
        not isinstance(given, Mapping)
        or "messages" in given
        or not all(isinstance(name, str) for name in given)
    ):
        raise BadParameter(
            "chat_template_kwargs",
            f"is {given!r:.80}; expected a dict of the template's variables by name, such as "
            "{'enable_thinking': False}, without 'messages'.",
        )
    return dict(given)
