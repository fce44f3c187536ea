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
"""Of a long text, at least, per piece: some 10 ms of a tokenizer's time."""
_CUT = re.compile("[A-Za-z] (?=[A-Za-z])")
"""Between the words of a line: nothing that a tokenizer splits by looks across it."""
_ACROSS_CUT = re.compile(b"[A-Za-z] ")
_AT_CUTS = [each.encode() for each in f"{string.ascii_letters} "]
_LETTER_AT_EDGE = re.compile("^[A-Za-z]|[A-Za-z]$")
_KEEPING = ("ByteLevel", "Digits", "Metaspace", "Punctuation", "Split", "UnicodeScripts")
"""Pre-tokenizers that lose no text, unless their behaviour is to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSteps:
    """Of a tokenizer whose tokens, joined, are its text."""

    is_composed: bool
    """Characters are composed first: Unicode's form NFC."""
    mark: str | None
    """What stands for a space in the names of tokens."""
    prepends_mark: bool
    """Each text gets one before it."""
    drops_spaces: bool
    """Spaces beside some special tokens have no token."""
    can_be_cut: bool
    """The tokens of a text are those of its pieces."""

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
    """None if it may do more than is known here.

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
    """What a step writes for a space; "" if it writes nothing, None for steps not known here."""
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
