"""Modelled grammars: which tokens may follow depends on the grammar and all of the output so far.

Each lets two tokens or fewer follow, so most choices of the modelled network are refused.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from raydix.ids import NO_TOKEN, GrammarKey
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.client import FailureKind, RequestFailure
from raydix.runtime.messages.grammar import Grammar, GrammarChanges, GrammarKind
from raydix.runtime.messages.plan import StepPlan, StepResult
from raydix.runtime.model.grammars.matcher import Matcher, Words
from raydix.runtime.model.grammars.slot_matchers import SlotMatchers
from raydix.runtime.scheduler import events
from tests.simulation.modelled_tokens import VOCABULARY, next_token, prefix_hashes

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster

_VOCABULARY = b"seven tokens"
_MOST = 2
_WRONG = "wrong"
"""The text of a grammar that cannot be compiled."""
_SLOW = "slow"
"""The text of a grammar whose masks take too long, after some of them."""
_SLOW_MASK_S = 0.1
_LATE_FRACTION = 0.3


class ModelledMatcher:
    """Lets two tokens or one follow, by a hash of the grammar and of the output so far."""

    def __init__(
        self, text: str, token_ids: Sequence[int] = (), work: Callable[[float], None] = float
    ) -> None:
        """`work`: is told how many seconds a mask takes."""
        self._mask_s = _SLOW_MASK_S if text == _SLOW else 0.0
        self._work = work
        self._state = zlib.crc32(text.encode())
        for token_id in token_ids:
            self.advance(token_id)

    def advance(self, token_id: int) -> None:
        self._state = zlib.crc32(f"{self._state} {token_id}".encode())

    def fill(self, words_W: Words) -> None:
        """Set the bits of the tokens that may follow, in the time that it takes."""
        self._work(self._mask_s)
        words_W[0] = sum(1 << token for token in self.allowed())

    def allowed(self) -> list[int]:
        """The tokens that may follow."""
        return sorted({self._state // 7**place % VOCABULARY for place in range(_MOST)})


class ModelledLibrary:
    """The modelled grammars that a rank has: what it was sent is their text."""

    def __init__(self) -> None:
        self._texts: dict[GrammarKey, str] = {}
        self._vocabulary: bytes | None = None
        self._worked_s = 0.0

    def worked_s(self) -> float:
        """The time that masks have taken."""
        return self._worked_s

    def _work(self, seconds: float) -> None:
        self._worked_s += seconds

    def change(self, changes: GrammarChanges) -> None:
        if changes.vocabulary is not None:
            self._vocabulary = changes.vocabulary
        assert self._vocabulary == _VOCABULARY, "no grammar can be read without it"
        for key in changes.dropped:
            del self._texts[key]
        for compiled in changes.compiled:
            assert compiled.key not in self._texts, "a grammar is sent twice"
            self._texts[compiled.key] = compiled.content.decode()

    def matcher(self, key: GrammarKey, token_ids: Sequence[int]) -> ModelledMatcher:
        return ModelledMatcher(self._texts[key], token_ids, self._work)

    def fill(self, matchers: Sequence[Matcher], words_MW: Words) -> None:
        for matcher, words_W in zip(matchers, words_MW, strict=True):
            assert isinstance(matcher, ModelledMatcher)
            matcher.fill(words_W)


class RankGrammars:
    """What a modelled rank samples by: the real matchers of slots, of modelled grammars."""

    def __init__(self) -> None:
        self._slots: set[int] = set()
        self.forget()

    def forget(self) -> None:
        """The Scheduler that has sent them is gone."""
        library = ModelledLibrary()
        self._matchers = SlotMatchers(library, thread_time=library.worked_s)
        self._slots.clear()

    def apply(self, plan: StepPlan) -> None:
        """Carry out a plan's removals, grammars and additions."""
        self._matchers.apply(plan)
        self._slots.difference_update(plan.removed_slots.tolist())
        self._slots |= {each.slot for each in plan.added if each.sampling.grammar is not None}

    def sample(self, slot: int, position: int, prefix_hash: int | None) -> int:
        """The modelled choice among the tokens that may follow; no token without numbers."""
        token = NO_TOKEN if prefix_hash is None else next_token(prefix_hash)
        if slot not in self._slots:
            return token
        words_MW = np.empty((1, 1), dtype=np.int32)
        self._matchers.fill([slot], [position], words_MW)
        allowed = [token for token in range(VOCABULARY) if words_MW[0, 0] >> token & 1]
        if prefix_hash is not None:
            token = chosen(allowed, prefix_hash)
        self._matchers.note_sampled(np.array([slot]), np.array([position]), lambda row: token)
        return token

    def add_to(self, result: StepResult) -> StepResult:
        """The result with the slots whose masks have taken too long."""
        return replace(result, slow_slots=int32_array(self._matchers.take_slow_slots()))


def chosen(allowed: list[int], prefix_hash: int) -> int:
    """The modelled choice among some tokens."""
    return allowed[prefix_hash % len(allowed)]


def expected_output(
    prompt: list[int],
    num_tokens: int,
    cache_salt: str | None = None,
    grammar: Grammar | None = None,
) -> list[int]:
    """What a request must answer in every cache state."""
    value = prefix_hashes(prompt, cache_salt)[-1]
    matcher = None if grammar is None else ModelledMatcher(grammar.text)
    tokens: list[int] = []
    for _ in range(num_tokens):
        if matcher is None:
            tokens.append(next_token(value))
        else:
            tokens.append(chosen(matcher.allowed(), value))
            matcher.advance(tokens[-1])
        value = hash((value, tokens[-1]))
    return tokens


def draw_grammar(draw: random.Random, fraction: float) -> Grammar | None:
    """One of few grammars, of which one cannot be compiled, or none."""
    if draw.random() >= fraction:
        return None
    text = draw.choice(["a", "b", "c", "d", _WRONG, _SLOW])
    return Grammar(kind=GrammarKind.REGEX, text=text)


def may_fail(grammar: Grammar | None) -> bool:
    """Whether requests with this grammar may be refused."""
    return grammar is not None and grammar.text in (_WRONG, _SLOW)


class ModelledCompilers:
    """Other processes compile grammars in their own time. Owns: which of those are wanted."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._wanted: set[events.CompileGrammar] = set()

    def start(self, effect: events.CompileGrammar, post: Callable[[events.Event], None]) -> None:
        """Answer some time, unless it is dropped before."""
        cluster, key = self._cluster, effect.key
        assert all(each.key != key for each in self._wanted), "a grammar is compiled twice"
        self._wanted.add(effect)
        answer = events.GrammarCompiled(
            key=key, content=effect.grammar.text.encode(), vocabulary=_VOCABULARY
        )
        is_wrong = effect.grammar.text == _WRONG
        # Drawn apart, so that nothing else depends on it.
        draw = random.Random(f"{cluster.now_s} {effect.grammar.text}")
        if is_wrong or draw.random() < cluster.faults.compiler_failure_fraction:
            # The other one is tried again.
            kind = FailureKind.BAD_REQUEST if is_wrong else FailureKind.ENGINE_DEAD
            failure = RequestFailure(kind=kind, message="cannot be compiled.")
            answer = events.GrammarCompiled(key=key, failure=failure, is_lasting=is_wrong)
        # Of those that are dropped some were on their way.
        is_late = draw.random() < _LATE_FRACTION

        def tell() -> None:
            if effect in self._wanted or is_late:
                self._wanted.discard(effect)
                post(answer)

        cluster.after(cluster.clock.draw(cluster.faults.compile_s), tell)

    def drop(self, effect: events.DropGrammar) -> None:
        """Nobody waits for it; it may be on its way already."""
        self._wanted = {each for each in self._wanted if each.key != effect.key}
