"""Stop strings in a text that arrives in pieces."""

from collections.abc import Sequence


class StopStringFinder:
    """Passes text on, but holds back any end of it that may be the beginning of a stop string.

    The match that is complete first wins, the longest of those that end together, so that the
    result does not depend on how the text was cut into pieces.
    """

    def __init__(self, stop_strings: Sequence[str], keeps_match: bool) -> None:
        """`keeps_match`: the released text ends with the stop string instead of before it."""
        self._stop_strings = tuple(stop_strings)
        self._keeps_match = keeps_match
        self._held = ""
        self.matched: str | None = None
        """The stop string that was found; nothing is released after it."""

    def push(self, text: str) -> str:
        """Take the next piece; return what may be shown. A whole stop string sets `matched`."""
        buffer = self._held + text
        best: tuple[int, int, str] | None = None
        for each in self._stop_strings:
            # Only a match that ends in the new text counts: any other was judged before.
            start = buffer.find(each, max(0, len(self._held) - len(each) + 1))
            if start >= 0 and (best is None or (start + len(each), start) < best[:2]):
                best = (start + len(each), start, each)

        if best is None:
            return self._release(buffer)
        end, start, self.matched = best
        self._held = ""
        return buffer[: end if self._keeps_match else start]

    def push_unchecked(self, text: str) -> str:
        """Like `push`, for text in which no stop string may end yet (`min_tokens`)."""
        return self._release(self._held + text)

    def flush(self) -> str:
        """Return what is held back: no more text follows."""
        held, self._held = self._held, ""
        return held

    def _release(self, buffer: str) -> str:
        num_held = max((_overlap(buffer, each) for each in self._stop_strings), default=0)
        self._held = buffer[len(buffer) - num_held :]
        return buffer[: len(buffer) - num_held]


def _overlap(text: str, stop_string: str) -> int:
    """Length of the longest end of `text` that is a proper beginning of `stop_string`."""
    for length in range(min(len(text), len(stop_string) - 1), 0, -1):
        if text.endswith(stop_string[:length]):
            return length
    return 0
