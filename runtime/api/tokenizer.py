"""A checkpoint's tokenizer and chat template.

`transformers` takes seconds to import: it is imported when a tokenizer is loaded.
"""

import functools
import tempfile
from collections.abc import Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raydix.errors import BadRequest, CheckpointError
from raydix.runtime.api.chat_template import ChatTemplate
from raydix.runtime.api.detokenizer import ByteDetokenizer, Detokenizer, WindowDetokenizer
from raydix.runtime.api.fair_turns import Steps, result_of
from raydix.runtime.api.freed_memory import give_back_memory
from raydix.runtime.api.least_tokens import LeastTokens
from raydix.runtime.api.prompts import is_unicode, longer_than
from raydix.runtime.api.text_steps import PIECE_CHARACTERS, TextSteps, text_steps_of
from raydix.runtime.api.token_bytes import TokenBytes
from raydix.runtime.model.checkpoint.hub import settings_folder
from raydix.runtime.model.checkpoint.late_import import import_late

_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "vocab.txt")
_LARGE_CHARACTERS = 256 << 10
"""The characters of a text whose tokenising leaves so much memory that giving it back pays."""


def load_tokenizer(path: str | Path) -> "Tokenizer | None":
    """The tokenizer of a model, or None if its folder (or this host) has none.

    path: as `model.path` of a loaded configuration. Raises CheckpointError if the files are there
    but cannot be used, or a model on the Hub cannot be had.
    """
    folder = settings_folder(str(path))
    if not _has_files(folder):
        return None
    # Another thread may be reading the checkpoint's configuration with it.
    auto_tokenizer = import_late("transformers").AutoTokenizer
    try:
        # Otherwise it would ask the terminal whether to run a program of the checkpoint's.
        loaded = auto_tokenizer.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False
        )
    except (OSError, ValueError, KeyError, TypeError, ImportError) as error:
        # What it says often has several lines.
        reason = " ".join(str(error).split())
        raise CheckpointError(
            f"The tokenizer in {folder} cannot be loaded ({type(error).__name__}: {reason}). "
            "Expected the files that transformers' save_pretrained writes. Repair them, or remove "
            "them to work with token ids alone."
        ) from error
    return Tokenizer(loaded)


def require_tokenizer(path: str | Path) -> None:
    """Raise BadRequest if there is a checkpoint without the files of a tokenizer.

    path: as for `load_tokenizer`. Raises CheckpointError as that does.
    """
    folder = settings_folder(str(path))
    # Of what is no checkpoint at all there is more to say than this.
    if (folder / "config.json").is_file() and not _has_files(folder):
        raise BadRequest(
            f"The prompt is text, but the checkpoint {path} has no tokenizer. Pass token ids, or "
            f"put the tokenizer's files into its folder ({', '.join(_FILES)})."
        )


def load_tokenizer_files(files: Mapping[str, bytes]) -> "Tokenizer | None":
    """The tokenizer that these files make, by their names, or None if they make none.

    Raises CheckpointError if they cannot be used.
    """
    with tempfile.TemporaryDirectory(prefix="raydix-tokenizer-") as folder:
        for name, content in files.items():
            # They come from another host: none may land elsewhere.
            (Path(folder) / Path(name).name).write_bytes(content)
        return load_tokenizer(folder)


def _has_files(folder: Path) -> bool:
    return any((folder / name).is_file() for name in _FILES)


class Tokenizer:
    """Text to ids and back. All methods may be called from several threads.

    Text is what the bytes of the tokens say: a valid part of a run of byte tokens keeps its text
    beside an invalid one. `decode` never applies `clean_up_tokenization_spaces`, which would change
    text that was already streamed.
    """

    def __init__(self, wrapped: Any) -> None:
        """`wrapped` is a transformers tokenizer."""
        self._wrapped = wrapped
        self._chat_template = ChatTemplate(wrapped)
        special = {i: each for i, each in wrapped.added_tokens_decoder.items() if each.special}
        self._special_ids = frozenset(special)
        self._special_texts = frozenset(each.content for each in special.values())
        self._token_bytes = TokenBytes.of(wrapped.backend_tokenizer) if wrapped.is_fast else None
        if wrapped.is_fast:
            # All of a text is wanted, and nothing but it.
            wrapped.backend_tokenizer.no_truncation()
            wrapped.backend_tokenizer.no_padding()

    def encode(self, text: str) -> list[int]:
        """Ids of a prompt, with the special tokens that the checkpoint puts around one.

        Raises BadRequest for what is no text.
        """
        return result_of(self.encoding(text, None))

    def encoding(self, text: str, max_tokens: int | None) -> Steps[list[int]]:
        """`encode` in steps. Raises PromptTooLong as soon as there are certainly more tokens."""
        if not isinstance(text, str) or not is_unicode(text):
            raise BadRequest(
                f"The text is {text!r:.80}; expected a str without half of a surrogate pair."
            )
        return self._encoding(text, max_tokens, with_special=True)

    def encode_chat(
        self, messages: Sequence[Mapping[str, Any]], **template_arguments: Any
    ) -> list[int]:
        """Ids of a conversation under the chat template.

        `template_arguments` go to transformers' `apply_chat_template`: `tools`,
        `add_generation_prompt` (True unless given, or unless `continue_final_message` is),
        `enable_thinking` and whatever else the
        template knows. The text parts of one message become lines of it. Raises BadRequest if
        there is no template, if it refuses, or if a message has no text, or more than text.
        """
        return result_of(self.encoding_chat(messages, template_arguments, None))

    def encoding_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        template_arguments: Mapping[str, Any],
        max_tokens: int | None,
    ) -> Steps[list[int]]:
        """`encode_chat` in steps. Raises PromptTooLong as soon as there are certainly more."""
        text = self._chat_template.text(messages, template_arguments)
        yield
        return (yield from self._encoding(text, max_tokens, with_special=False))

    @property
    def tool_template(self) -> str | None:
        """The chat template for conversations with tools; None: there is none."""
        return self._chat_template.for_tools

    def _encoding(
        self, text: str, max_tokens: int | None, *, with_special: bool
    ) -> Steps[list[int]]:
        steps = None if len(text) <= PIECE_CHARACTERS else self._text_steps
        if steps is not None and max_tokens is not None:
            if self._least_tokens.exceed(text, max_tokens):
                raise longer_than(max_tokens)
            yield
        try:
            if steps is None:
                return self._encoded(text, with_special)
            return (yield from self._encoding_pieces(steps, text, max_tokens, with_special))
        finally:
            if len(text) >= _LARGE_CHARACTERS:
                give_back_memory()

    def _encoding_pieces(
        self, steps: TextSteps, text: str, max_tokens: int | None, with_special: bool
    ) -> Steps[list[int]]:
        before, after = self._around if with_special else ([], [])
        token_ids = [*before]
        for piece in steps.pieces(text):
            token_ids += self._encoded(piece, with_special=False)
            # Nothing that follows takes back a token.
            if max_tokens is not None and len(token_ids) > max_tokens:
                raise longer_than(max_tokens)
            yield
        return [*token_ids, *after]

    def _encoded(self, text: str, with_special: bool) -> list[int]:
        if not self._wrapped.is_fast:
            return list(self._wrapped.encode(text, add_special_tokens=with_special, verbose=False))
        # The library's own answer has much besides, which is made in Python.
        encoded = self._wrapped.backend_tokenizer.encode(text, add_special_tokens=with_special)
        token_ids: list[int] = encoded.ids
        return token_ids

    @functools.cached_property
    def _text_steps(self) -> TextSteps | None:
        if self._token_bytes is None:
            return None
        return text_steps_of(self._wrapped.backend_tokenizer, self._token_bytes)

    @functools.cached_property
    def _least_tokens(self) -> LeastTokens:
        assert self._token_bytes is not None, "there are steps"
        assert self._text_steps is not None, "the caller looked"
        return LeastTokens(self._wrapped.backend_tokenizer, self._token_bytes, self._text_steps)

    def decode_given(self, token_ids: Sequence[int] | NDArray[np.integer[Any]]) -> str:
        """Text of a user's ids, special tokens among it. Raises BadRequest for what are none."""
        if isinstance(token_ids, np.ndarray):
            token_ids = token_ids.tolist()
        if not isinstance(token_ids, Sequence) or isinstance(token_ids, str | bytes):
            raise BadRequest(f"The token ids are {token_ids!r:.80}; expected a list of ints.")
        wrong = [each for each in token_ids if not _is_token_id(each)]
        if wrong:
            raise BadRequest(f"{wrong[0]!r:.80} is no token id; expected whole numbers from 0.")
        return self.decode([int(each) for each in token_ids], skip_special_tokens=False)

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool) -> str:
        """Text of all `token_ids` at once. Ids that the tokenizer does not know have no text."""
        if self._token_bytes is not None:
            whole = self.detokenizer(skip_special_tokens)
            return whole.push(token_ids) + whole.flush()
        return self._decoded(token_ids, skip_special_tokens)

    def prompt_texts(
        self, token_ids: Sequence[int], prompt: str | None, *, is_whole: bool
    ) -> list[str]:
        """The text of each token of a prompt, as that of an output goes on behind them.

        prompt: the text that they were made of, if any, which has not what the checkpoint puts
        around it. is_whole: nothing follows, so that an unfinished character is told, too.
        """
        num_before, num_after = (0, 0) if prompt is None else map(len, self._around)
        last = len(token_ids) - num_after
        detokenizer = self.detokenizer(skip_special_tokens=False)
        texts = [detokenizer.push((each,)) for each in token_ids[num_before:last]]
        if is_whole and texts:
            texts[-1] += detokenizer.flush()
        return [*[""] * num_before, *texts, *[""] * num_after]

    @functools.cached_property
    def _around(self) -> tuple[list[int], list[int]]:
        """The special tokens that the checkpoint puts before and after a prompt."""
        whole, own = self._encoded("a", True), self._encoded("a", False)
        places = range(len(whole) - len(own) + 1)
        start = next(i for i in places if whole[i : i + len(own)] == own)
        return whole[:start], whole[start + len(own) :]

    def is_special(self, text: str) -> bool:
        """Whether a text is one special token, which is hidden unless it is asked for."""
        return text in self._special_texts

    def token_text(self, token_id: int) -> str:
        """A token's text behind others; of a part of a character, what stands for that."""
        if self._token_bytes is None:
            return self._decoded([token_id], skip_special_tokens=False)
        return self._token_bytes(token_id).decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """A token's bytes behind others, which may be a part of a character."""
        if self._token_bytes is None:
            return self.token_text(token_id).encode()
        return self._token_bytes(token_id)

    def detokenizer(self, skip_special_tokens: bool, behind: Sequence[int] = ()) -> Detokenizer:
        """A new incremental detokenizer, for the output of one request behind its prompt."""
        if self._token_bytes is not None:
            hidden_ids = self._special_ids if skip_special_tokens else frozenset[int]()
            return ByteDetokenizer(self._token_bytes, hidden_ids, behind)
        decode = functools.partial(self._decoded, skip_special_tokens=skip_special_tokens)
        return WindowDetokenizer(decode, behind)

    def _decoded(self, token_ids: Sequence[int], skip_special_tokens: bool) -> str:
        """The text of token ids, as the wrapped tokenizer decodes them."""
        text: str = self._wrapped.decode(
            list(token_ids),
            skip_special_tokens=skip_special_tokens,
            clean_up_tokenization_spaces=False,
        )
        return text


def _is_token_id(value: Any) -> bool:
    is_number = isinstance(value, Integral) and not isinstance(value, bool)
    return is_number and 0 <= int(value) < 2**32
