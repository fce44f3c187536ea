"""What a tokenizer does to a text before its model sees it, as far as lengths depend on that."""

import json
import re
import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import models

from raydix.runtime.api.token_bytes import TokenBytes

PIECE_CHARACTERS = 8 << 10
"""The least characters of a piece of a long text: about 10 ms of a tokenizer's time."""
_CUT = re.compile("[A-Za-z] (?=[A-Za-z])")
"""The place to cut, between words of a line: no tokenizer that splits by words looks across it."""
_ACROSS_CUT = re.compile(b"[A-Za-z] ")
_AT_CUTS = [each.encode() for each in f"{string.ascii_letters} "]
_LETTER_AT_EDGE = re.compile("^[A-Za-z]|[A-Za-z]$")
_KEEPING = ("ByteLevel", "Digits", "Metaspace", "Punctuation", "Split", "UnicodeScripts")
"""The pre-tokenizers that lose no text, unless their behaviour is to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSteps:
    """The steps by which a tokenizer changes texts, if its tokens, joined, are the text."""

    is_composed: bool
    """Whether characters are composed first, to Unicode's form NFC."""
    mark: str | None
    """The character that stands for a space in the names of tokens; None: no step writes one."""
    prepends_mark: bool
    """Whether each text gets a mark before it."""
    drops_spaces: bool
    """Whether spaces beside some special tokens have no token."""
    can_be_cut: bool
    """Whether the tokens of a text are those of its pieces."""

    def pieces(self, text: str) -> Iterator[str]:
        """The text in pieces which, one by one, have the tokens that it has as a whole."""
        start = 0
        while self.can_be_cut and len(text) - start > PIECE_CHARACTERS:
            found = _CUT.search(text, start + PIECE_CHARACTERS)
            if found is None:
                break
            yield text[start : found.start() + 1]
            # Before each piece a space is written anew.
            start = found.end() if self.prepends_mark else found.start() + 1
        yield text[start:]


def text_steps_of(backend: Any, token_bytes: TokenBytes) -> TextSteps | None:
    """The steps of a tokenizer; None if it may do more than is known here.

    backend: a Tokenizer of the tokenizers library.
    """
    normalizers = _parts(backend.normalizer, "normalizers")
    pre_tokenizers = _parts(backend.pre_tokenizer, "pretokenizers")
    marks = {_mark_of(each) for each in (*normalizers, *pre_tokenizers)} - {""}
    if None in marks or len(marks) > 1 or not all(map(_keeps_text, pre_tokenizers)):
        return None

    known = {token_bytes.of_name(name) for name in backend.get_vocab(with_added_tokens=True)}
    added = backend.get_added_tokens_decoder().values()
    stripping = [each.content for each in added if each.lstrip or each.rstrip]
    return TextSteps(
        is_composed=any(each["type"] == "NFC" for each in normalizers),
        mark=next(iter(marks), None),
        prepends_mark=any(each["type"] == "Prepend" for each in normalizers),
        drops_spaces=bool(stripping),
        # A merge across a cut would be a token with what is on both sides of it.
        can_be_cut=isinstance(backend.model, models.BPE)
        and known.issuperset(_AT_CUTS)
        and not any(map(_ACROSS_CUT.search, known))
        and not any(map(_LETTER_AT_EDGE.search, stripping)),
    )


def _parts(component: Any, name: str) -> Sequence[Mapping[str, Any]]:
    """The steps of a normaliser or pre-tokenizer, as tokenizer.json has them."""
    if component is None:
        return ()
    state = json.loads(component.__getstate__())
    if state["type"] != "Sequence":
        return (state,)
    parts: list[Mapping[str, Any]] = state[name]
    return parts


def _mark_of(step: Mapping[str, Any]) -> str | None:
    """The mark that a step writes for a space: "" for none; None for a step not known here."""
    match step:
        case {"type": "Prepend", "prepend": str(mark)} if len(mark) == 1:
            return mark
        case {"type": "Replace", "pattern": {"String": " "}, "content": str(mark)}:
            return mark if len(mark) == 1 else None
        case {"type": "Metaspace", "replacement": str(mark)}:
            return mark
        case {"type": "NFC"}:
            return ""
        case {"type": str(kind)} if kind in _KEEPING:
            return ""
    return None


def _keeps_text(step: Mapping[str, Any]) -> bool:
    return step["type"] in _KEEPING and str(step.get("behavior", "")).lower() != "removed"
