"""The text of an answer, read while it comes."""

from collections.abc import Sequence

from raydix.runtime.api.tool_formats.events import Content, Reading, Reasoning

BLANKS = " \t\r\n"


class Incoming:
    """Owns: what has come and is not read yet, and a copy of what was read since `keep`.

    Each method that is a `Reading` waits until no further text can change what it finds, so that
    it makes no difference in which pieces the text comes.
    """

    def __init__(self) -> None:
        self._text = ""
        self._start = 0
        self._has_ended = False
        self._num_read = 0
        self._kept: list[str] | None = None

    @property
    def rest(self) -> str:
        """What has come and is not read yet."""
        return self._text[self._start :]

    @property
    def num_read(self) -> int:
        """The characters that have been read since the answer began."""
        return self._num_read

    @property
    def has_ended(self) -> bool:
        """Whether no more text will come; there may be some left to read."""
        return self._has_ended

    def add(self, text: str) -> None:
        """Take what follows."""
        self._text = self.rest + text
        self._start = 0

    def end(self) -> None:
        """Take it that nothing follows."""
        self._has_ended = True

    def keep(self) -> None:
        """Keep a copy of what is read from now on."""
        self._kept = []

    def kept(self) -> str:
        """What was read since `keep`; no copy is kept any longer."""
        assert self._kept is not None, "keep comes first"
        kept, self._kept = "".join(self._kept), None
        return kept

    def take(self, number: int) -> str:
        """Read so many characters of what has come."""
        taken = self._text[self._start : self._start + number]
        self._start += len(taken)
        self._num_read += len(taken)
        if self._kept is not None:
            self._kept.append(taken)
        return taken

    def is_over(self) -> Reading[bool]:
        """Whether all is read."""
        while self._start == len(self._text):
            if self._has_ended:
                return True
            yield None
        return False

    def sees(self, literal: str) -> Reading[bool]:
        """Whether this comes next."""
        while not self._text.startswith(literal, self._start):
            come = self._text[self._start : self._start + len(literal)]
            if self._has_ended or not literal.startswith(come):
                return False
            yield None
        return True

    def takes(self, literal: str) -> Reading[bool]:
        """Read this if it comes next."""
        is_next = yield from self.sees(literal)
        if is_next:
            self.take(len(literal))
        return is_next

    def skip_blanks(self, blanks: str = BLANKS) -> Reading[str]:
        """Read spaces and ends of lines, or these of them; returns what was read."""
        skipped = ""
        while blanks and not (yield from self.is_over()) and self._text[self._start] in blanks:
            skipped += self.take(1)
        return skipped

    def content_until(self, markers: Sequence[str]) -> Reading[bool]:
        """Tell content up to the first of the markers. False: none came."""
        while True:
            place = self._first(markers)
            num_sure = place - self._start if place >= 0 else self._num_sure(markers)
            if num_sure:
                yield Content(self.take(num_sure))
            if place >= 0 or self._has_ended:
                return place >= 0
            yield None

    def reasoning_until(self, markers: Sequence[str], blanks: str = "") -> Reading[None]:
        """Tell reasoning up to the first of the markers, without the blanks around it."""
        held, has_begun = "", False
        for event in self.content_until(markers):
            if not isinstance(event, Content):
                yield event
                continue
            new = held + event.text
            new = new if has_begun else new.lstrip(blanks)
            said = new.rstrip(blanks)
            held = new[len(said) :]
            if said:
                has_begun = True
                yield Reasoning(said)

    def until(self, *markers: str) -> Reading[str | None]:
        """What comes before the first of the markers, at which it stops; None: none came."""
        pieces: list[str] = []
        while True:
            place = self._first(markers)
            num_sure = place - self._start if place >= 0 else self._num_sure(markers)
            pieces.append(self.take(num_sure))
            if place >= 0:
                return "".join(pieces)
            if self._has_ended:
                return None
            yield None

    def _first(self, markers: Sequence[str]) -> int:
        places = [self._text.find(each, self._start) for each in markers]
        return min((place for place in places if place >= 0), default=-1)

    def _num_sure(self, markers: Sequence[str]) -> int:
        """The characters with which no marker begins that may yet be completed."""
        end = len(self._text)
        if not self._has_ended:
            longest = max(map(len, markers), default=1) - 1
            firsts = {each[0] for each in markers}
            for place in range(max(self._start, end - longest), end):
                if self._text[place] in firsts and any(
                    each.startswith(self._text[place:]) for each in markers
                ):
                    return place - self._start
        return end - self._start
