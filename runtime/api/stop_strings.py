"""Stop strings in a text that arrives in pieces."""

from collections.abc import Sequence


class StopStringFinder:
    """Passes text on, but holds back any end of it that may be the beginning of a stop string.

    The match that is complete first wins, the longest of those that end together, so that the
    result does not depend on how the text was cut into pieces. A character costs the same for each
    stop string, however long that is: all streams of a server are searched on one loop.
    """

    def __init__(self, stop_strings: Sequence[str], keeps_match: bool) -> None:
        """`keeps_match`: the released text ends with the stop string instead of before it."""
        self._matches = [_Match(each) for each in stop_strings]
        self._keeps_match = keeps_match
        self._held = ""
        self.matched: str | None = None
        """The stop string that was found; nothing is released after it."""

    def push(self, text: str) -> str:
        """Take the next piece; return what may be shown. A whole stop string sets `matched`."""
        for index, character in enumerate(text):
            # Not `any`: each must hear of the character.
            whole = [each.stop for each in self._matches if each.push(character)]
            if whole:
                self.matched = max(whole, key=len)
                shown = self._held + text[: index + 1]
                self._held = ""
                return shown if self._keeps_match else shown[: -len(self.matched)]
        return self._release(text)

    def push_unchecked(self, text: str) -> str:
        """Push text in which no stop string may end yet (`min_tokens`)."""
        for character in text:
            for each in self._matches:
                each.push(character)
        return self._release(text)

    def flush(self) -> str:
        """Return what is held back: no more text follows."""
        held, self._held = self._held, ""
        return held

    def _release(self, text: str) -> str:
        buffer = self._held + text
        num_held = max((each.length for each in self._matches), default=0)
        self._held = buffer[len(buffer) - num_held :]
        return buffer[: len(buffer) - num_held]


class _Match:
    """Owns: how much of the beginning of one stop string the text so far ends with.

    After Knuth, Morris and Pratt, "Fast Pattern Matching in Strings" (1977).
    """

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.length = 0
        """The length of the match so far, always less than all: a whole match's end counts on."""
        self._borders = [0]
        """The number of last characters among the first i + 1 that are also their beginning, by i.
        It is known as far as the text has matched: a long stop string costs nothing before.
        """

    def push(self, character: str) -> bool:
        """Take the next character of the text; whether it completes the stop string."""
        self.length = self._longer(self.length, character)
        if self.length > len(self._borders):
            self._borders.append(self._longer(self._borders[-1], character))
        if self.length < len(self.stop):
            return False
        self.length = self._borders[-1]
        return True

    def _longer(self, length: int, character: str) -> int:
        """The longest match of a text that matched so far and goes on with this character."""
        while length and self.stop[length] != character:
            length = self._borders[length - 1]
        return length + 1 if self.stop[length] == character else 0
