"""Where a JSON value ends, and whether it is one, while its text comes."""

import re
from enum import Enum, auto

_MAX_DEPTH = 128
"""Deeper values are refused, as readers of JSON do."""
_STRING_PART = re.compile(r'[^"\\\x00-\x1f]*')
_HEX_DIGITS = frozenset("0123456789abcdefABCDEF")
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?", re.ASCII)
_WORDS = frozenset({"true", "false", "null"})
_WORD_CHARACTERS = frozenset("+-.0123456789eEtrufalsn")
_BLANKS = " \t\r\n"


class _Expects(Enum):
    VALUE = auto()
    VALUE_OR_END = auto()
    KEY = auto()
    KEY_OR_END = auto()
    COLON = auto()
    COMMA_OR_END = auto()
    STRING = auto()
    ESCAPE = auto()
    HEX = auto()
    WORD = auto()
    NOTHING = auto()


class JsonScanner:
    """Owns: how far a value has been read.

    A number or a word at the top ends with what follows it, so that `end` must tell if nothing
    does.
    """

    def __init__(self) -> None:
        self._expects = _Expects.VALUE
        self._closers: list[str] = []
        """What ends each object and list that is open."""
        self._is_key = False
        self._word = ""
        self._num_hex = 0
        self.is_wrong = False

    @property
    def is_over(self) -> bool:
        """Nothing more belongs to the value, which is whole unless `is_wrong`."""
        return self.is_wrong or self._expects is _Expects.NOTHING

    def read(self, text: str) -> int:
        """Go on with what follows; returns how many characters belong to the value."""
        place = 0
        while place < len(text) and not self.is_over:
            if self._expects is _Expects.STRING:
                part = _STRING_PART.match(text, place)
                assert part is not None, "it may be empty"
                place = part.end()
                if place == len(text):
                    break
            if not self._step(text[place]):
                continue
            place += 1
        return place

    def end(self) -> None:
        """Take it that nothing follows."""
        if self._expects is _Expects.WORD:
            self._end_word()
        self.is_wrong |= self._expects is not _Expects.NOTHING

    def _step(self, character: str) -> bool:
        """Take a character; False if it is not of the value, or has to be looked at again."""
        match self._expects:
            case _Expects.STRING:
                return self._in_string(character)
            case _Expects.ESCAPE:
                is_hex = character == "u"
                self._num_hex = 4 if is_hex else 0
                self._expects = _Expects.HEX if is_hex else _Expects.STRING
                return self._require(is_hex or character in '"\\/bfnrt')
            case _Expects.HEX:
                self._num_hex -= 1
                if not self._num_hex:
                    self._expects = _Expects.STRING
                return self._require(character in _HEX_DIGITS)
            case _Expects.WORD:
                if character in _WORD_CHARACTERS:
                    self._word += character
                    return True
                self._end_word()
                return False
        return True if character in _BLANKS else self._between(character)

    def _in_string(self, character: str) -> bool:
        if character == "\\":
            self._expects = _Expects.ESCAPE
        elif character == '"':
            if self._is_key:
                self._is_key = False
                self._expects = _Expects.COLON
            else:
                self._end_value()
        return self._require(character in '"\\')

    def _between(self, character: str) -> bool:
        """Take a character that is in no string, number or word, and no blank."""
        expects = self._expects
        is_end = bool(self._closers) and character == self._closers[-1]
        if is_end and expects in (
            _Expects.COMMA_OR_END,
            _Expects.KEY_OR_END,
            _Expects.VALUE_OR_END,
        ):
            self._closers.pop()
            self._end_value()
            return True
        match expects:
            case _Expects.COMMA_OR_END:
                is_object = self._closers[-1] == "}"
                self._expects = _Expects.KEY if is_object else _Expects.VALUE
                return self._require(character == ",")
            case _Expects.COLON:
                self._expects = _Expects.VALUE
                return self._require(character == ":")
            case _Expects.KEY | _Expects.KEY_OR_END:
                self._is_key = True
                self._expects = _Expects.STRING
                return self._require(character == '"')
        return self._begin_value(character)

    def _begin_value(self, character: str) -> bool:
        if character in "{[":
            self._closers.append("}" if character == "{" else "]")
            is_object = character == "{"
            self._expects = _Expects.KEY_OR_END if is_object else _Expects.VALUE_OR_END
            return self._require(len(self._closers) <= _MAX_DEPTH)
        if character == '"':
            self._expects = _Expects.STRING
            return True
        self._word = ""
        self._expects = _Expects.WORD
        self._require(character in _WORD_CHARACTERS)
        return False

    def _end_word(self) -> None:
        self._require(self._word in _WORDS or _NUMBER.fullmatch(self._word) is not None)
        self._end_value()

    def _end_value(self) -> None:
        self._expects = _Expects.COMMA_OR_END if self._closers else _Expects.NOTHING

    def _require(self, is_right: bool) -> bool:
        self.is_wrong |= not is_right
        return is_right
