"""All output of one request that has come, and what its caller has had of it."""

from dataclasses import dataclass, field

from raydix.runtime.api.outputs import CompletionOutput, Logprob


@dataclass(slots=True)
class OutputSoFar:
    """Owns: the tokens and text that have come, and how much of them was taken.

    A token's text begins where that of all tokens before it ends: nowhere within a character, which
    the token that completes it has whole. With logprobs, what is taken ends where a token's text
    does: what later ones may change of a token is held back with it.
    """

    has_logprobs: bool
    has_text: bool
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    """The text that may be shown, without what may be the beginning of a stop string."""
    logprobs: list[dict[int, Logprob]] = field(default_factory=list)
    _starts: list[int] = field(default_factory=list)
    """The index at which each token's text begins in that of all; with logprobs and text alone."""
    _num_characters: int = 0
    """The number of characters in the text of all tokens."""
    _num_taken_tokens: int = 0
    _num_taken_characters: int = 0

    def add_token(self, token_id: int) -> None:
        """Add one more token."""
        self.token_ids.append(token_id)
        if self.has_logprobs and self.has_text:
            self._starts.append(self._num_characters)

    def add_text(self, text: str) -> None:
        """Add more text of the latest token, whether it may be shown or not."""
        self._num_characters += len(text)

    def show(self, text: str) -> None:
        """Let this much more of the tokens' text be shown."""
        self.text += text

    def whole(self) -> CompletionOutput:
        """All that has come."""
        return self._completion(0, len(self.token_ids), 0, len(self.text))

    def take_new(self, *, is_open: bool, is_finished: bool) -> CompletionOutput:
        """Take what is new, perhaps nothing. is_open: its last token may get more text.

        Once it is finished all is taken.
        """
        first, first_character = self._num_taken_tokens, self._num_taken_characters
        self._num_taken_tokens = len(self.token_ids)
        self._num_taken_characters = len(self.text)
        if self._starts and not is_finished:
            self._hold_back(is_open)
        return self._completion(
            first, self._num_taken_tokens, first_character, self._num_taken_characters
        )

    def _hold_back(self, is_open: bool) -> None:
        """Leave the last tokens whose text is not settled."""
        end, number = self._num_characters, len(self._starts)
        while number and (end > len(self.text) or (is_open and number == len(self._starts))):
            number -= 1
            end = self._starts[number]
        # What was taken is settled.
        self._num_taken_tokens, self._num_taken_characters = number, min(end, len(self.text))

    def _completion(
        self, first: int, last: int, first_character: int, last_character: int
    ) -> CompletionOutput:
        logprobs = self.logprobs[first:last] if self.has_logprobs else None
        cumulative = None
        if logprobs is not None:
            # The sampled token comes first.
            cumulative = sum((next(iter(entry.values())).logprob for entry in logprobs), 0.0)
        starts = self._starts[first:last] if self.has_logprobs and self.has_text else None
        return CompletionOutput(
            text=self.text[first_character:last_character],
            token_ids=self.token_ids[first:last],
            cumulative_logprob=cumulative,
            logprobs=logprobs,
            # What follows a stop string is not in the text.
            text_offsets=None if starts is None else [min(each, len(self.text)) for each in starts],
        )
