"""The grammars that a rank has been sent, read beside its steps."""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from raydix.errors import AccountingError
from raydix.ids import GrammarKey
from raydix.runtime.messages.grammar import GrammarChanges
from raydix.runtime.model.grammars.matcher import Matcher, Words
from raydix.runtime.model.grammars.vocabulary import ReadGrammar, Vocabulary


class _ComingMatcher:
    """A `Matcher` that another thread is making; whoever uses it waits for that."""

    def __init__(self, made: "Future[Matcher]") -> None:
        self._made = made

    def advance(self, token_id: int) -> None:
        """Take the next token of the output."""
        self._made.result().advance(token_id)

    def fill(self, words_W: Words) -> None:
        """Set the bits of the tokens that may come next, and of no other."""
        self._made.result().fill(words_W)


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

    def _known_vocabulary(self) -> "Future[Vocabulary]":
        if self._vocabulary is None:
            raise AccountingError("a grammar was sent before the vocabulary that it is read with")
        return self._vocabulary


def _read(vocabulary: "Future[Vocabulary]", content: bytes) -> ReadGrammar:
    return vocabulary.result().grammar(content)
