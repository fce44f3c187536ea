"""Which bytes each token adds to a text: the whole text is the bytes of all its tokens.

That holds for byte-level tokenizers (Llama 3, Qwen) and for those of sentencepiece's kind (Llama 2,
Mistral, Gemma), which write a space as U+2581 and a byte without a token of its own as `<0x0A>`.
"""

import functools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

_BYTE_NAME = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rules:
    """How the name of a token becomes bytes."""

    is_byte_level: bool = False
    replacements: tuple[tuple[str, str], ...] = ()
    """The replacements in names of tokens: what is written, and what it means."""
    has_byte_names: bool = False
    strips_first_space: bool = False
    """Whether a text loses one space at its beginning."""
    mark_dropped_first: str | None = None
    """The mark of which a text's first token loses all; None: it loses nothing."""


class TokenBytes:
    """The bytes of each token of one tokenizer. May be used from several threads.

    Owns: the bytes of those that were asked for.
    """

    def __init__(self, backend: Any, rules: _Rules) -> None:
        """`backend` is a Tokenizer of the tokenizers library. Made by `of`."""
        self._backend = backend
        self._rules = rules
        self._known: dict[int, bytes] = {}

    @classmethod
    def of(cls, backend: Any) -> Self | None:
        """The bytes of a tokenizer's tokens; None if its decoder does more than join them."""
        decoder = backend.decoder
        rules = None if decoder is None else _rules_of(json.loads(decoder.__getstate__()))
        return None if rules is None else cls(backend, rules)

    @property
    def is_byte_level(self) -> bool:
        """Whether any token may end inside a character."""
        return self._rules.is_byte_level

    def __call__(self, token_id: int) -> bytes:
        """The bytes that a token adds behind others; none if the tokenizer does not know it."""
        known = self._known.get(token_id)
        if known is None:
            name = self._backend.id_to_token(token_id)
            known = self._known[token_id] = b"" if name is None else self.of_name(name)
        return known

    def of_first(self, token_id: int) -> bytes:
        """The bytes that a token adds as the first one of a text."""
        mark = self._rules.mark_dropped_first
        if mark is not None:
            name = self._backend.id_to_token(token_id)
            return b"" if name is None else self.of_name(name.replace(mark, ""))
        known = self(token_id)
        return known.removeprefix(b" ") if self._rules.strips_first_space else known

    def of_name(self, name: str) -> bytes:
        """The bytes of a token that the vocabulary writes like this."""
        rules = self._rules
        if rules.is_byte_level:
            return _byte_level_bytes(name)
        if rules.has_byte_names and (byte := _BYTE_NAME.fullmatch(name)) is not None:
            return bytes.fromhex(byte[1])
        for written, meant in rules.replacements:
            name = name.replace(written, meant)
        return name.encode()


def _rules_of(decoder: Mapping[str, Any]) -> _Rules | None:
    """The rules of a decoder's steps, as tokenizer.json has them; None if there are other steps."""
    steps = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    if [step["type"] for step in steps] == ["ByteLevel"]:
        return _Rules(is_byte_level=True)

    replacements: list[tuple[str, str]] = []
    names = [step["type"] for step in steps]
    for number, step in enumerate(steps):
        match step:
            case {"type": "Replace", "pattern": {"String": str(written)}, "content": str(meant)}:
                replacements.append((written, meant))
            case {"type": "Metaspace", "replacement": str(written)}:
                replacements.append((written, " "))
            case {"type": "Strip", "content": " ", "start": 1, "stop": 0}:
                # Otherwise each token loses a space.
                if "Fuse" not in names[:number]:
                    return None
            case {"type": "ByteFallback" | "Fuse"}:
                pass
            case _:
                return None
    return _Rules(
        replacements=tuple(replacements),
        has_byte_names="ByteFallback" in names,
        strips_first_space="Strip" in names,
        mark_dropped_first=_mark_dropped_first(steps),
    )


def _mark_dropped_first(steps: Sequence[Mapping[str, Any]]) -> str | None:
    for step in steps:
        if step["type"] == "Metaspace" and step.get("prepend_scheme", "always") != "never":
            mark: str = step["replacement"]
            return mark
    return None


def _byte_level_bytes(name: str) -> bytes:
    """Undo the byte-level alphabet."""
    # As in the tokenizers library, a name with any other character stands for itself.
    alphabet = _byte_level_alphabet()
    if all(character in alphabet for character in name):
        return bytes(alphabet[character] for character in name)
    return name.encode()


@functools.cache
def _byte_level_alphabet() -> dict[str, int]:
    """Character to byte, as GPT-2 defined it."""
    # Printable Latin-1 bytes stand for themselves, the others for characters from U+0100 on.
    shown = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    others = [byte for byte in range(256) if byte not in shown]
    return {chr(byte): byte for byte in shown} | {
        chr(256 + i): byte for i, byte in enumerate(others)
    }
