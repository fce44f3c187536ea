"""The grammars that a rank has been sent, read beside its steps."""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import cast

from raydix.errors import AccountingError
from raydix.ids import GrammarKey
from raydix.runtime.messages.grammar import GrammarChanges
from raydix.runtime.model.grammars.matcher import Matcher, Words
from raydix.runtime.model.grammars.vocabulary import ReadGrammar, Vocabulary, XgrammarMatcher


class _ComingMatcher:
    """A `Matcher` that another thread is making; whoever uses it waits for that."""

    def __init__(self, made: "Future[XgrammarMatcher]") -> None:
        self._made = made

    @property
    def made(self) -> XgrammarMatcher:
        """The matcher itself."""
        return self._made.result()

    def advance(self, token_id: int) -> None:
        """Take the next token of the output."""
        self.made.advance(token_id)


class ReadGrammars:
    """A `GrammarLibrary` of xgrammar's. Owns: the vocabulary and the grammars, as they are read.

    To read one takes some ten milliseconds, and to follow a long output as many: a thread of its
    own does both in the order in which plans come.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="grammars")
        self._vocabulary: Future[Vocabulary] | None = None
        self._grammars: dict[GrammarKey, Future[ReadGrammar]] = {}

    def change(self, changes: GrammarChanges) -> None:
        """Drop some, then read others."""
        if changes.vocabulary is not None:
            self._vocabulary = self._thread.submit(Vocabulary.of, changes.vocabulary)
        vocabulary = self._known_vocabulary()
        for key in changes.dropped:
            del self._grammars[key]
        for compiled in changes.compiled:
            self._grammars[compiled.key] = self._thread.submit(_read, vocabulary, compiled.content)

    def matcher(self, key: GrammarKey, token_ids: Sequence[int]) -> Matcher:
        """A matcher behind these tokens of an output. Raises AccountingError if it is not known."""
        if key not in self._grammars:
            raise AccountingError(
                f"grammar {key.hex()} was not sent before a request that needs it"
            )
        vocabulary, grammar = self._known_vocabulary(), self._grammars[key]
        return _ComingMatcher(
            self._thread.submit(lambda: vocabulary.result().matcher_of(grammar.result(), token_ids))
        )

    def fill(self, matchers: Sequence[Matcher], words_MW: Words) -> None:
        """Set in each matcher's row the bits of the tokens that may come next, and of no other."""
        if matchers:
            made = [cast(_ComingMatcher, each).made for each in matchers]
            self._known_vocabulary().result().fill(made, words_MW)

    def _known_vocabulary(self) -> "Future[Vocabulary]":
        if self._vocabulary is None:
            raise AccountingError("a grammar was sent before the vocabulary that it is read with")
        return self._vocabulary


def _read(vocabulary: "Future[Vocabulary]", content: bytes) -> ReadGrammar:
    return vocabulary.result().grammar(content)
