"""Grammars of a lane: what its ranks are sent, and what they are not."""

import pytest

from raydix.runtime.messages.grammar import CompiledGrammar, Grammar, GrammarKind
from raydix.runtime.scheduler.ranks import lane_grammars
from raydix.runtime.scheduler.ranks.lane_grammars import LaneGrammars
from raydix.runtime.scheduler.request.grammar_need import GrammarNeed


def need(text: str) -> GrammarNeed:
    """The need of a request whose grammar is compiled, to twenty bytes."""
    made = GrammarNeed(Grammar(kind=GrammarKind.REGEX, text=text))
    assert made.key is not None
    made.take(CompiledGrammar(key=made.key, content=b"x" * 20), b"vocabulary")
    return made


def test_a_grammar_whose_request_ended_before_any_plan_takes_no_room_and_is_not_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lane_grammars, "_MAX_UNSENT_BYTES", 10)
    monkeypatch.setattr(lane_grammars, "_MAX_KEPT_BYTES", 10)
    grammars, gone, other = LaneGrammars(), need("a"), need("b")
    grammars.begin(gone)
    grammars.end(gone)

    assert grammars.has_room(other)
    grammars.begin(other)
    changes = grammars.take_changes()

    assert changes is not None
    assert [each.key for each in changes.compiled] == [other.key]
    assert changes.vocabulary == b"vocabulary"
    assert not changes.dropped
    grammars.check([other])


def test_a_grammar_that_another_request_waits_to_have_sent_is_sent() -> None:
    grammars = LaneGrammars()
    grammars.begin(need("a"))
    grammars.begin(need("a"))
    grammars.end(need("a"))
    changes = grammars.take_changes()
    assert changes is not None
    assert [each.key for each in changes.compiled] == [need("a").key]


def test_a_grammar_waits_for_the_plan_that_brings_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_grammars, "_MAX_UNSENT_BYTES", 10)
    grammars = LaneGrammars()
    grammars.begin(need("a"))
    assert not grammars.has_room(need("b"))
    assert grammars.has_room(need("a"))
    grammars.take_changes()
    assert grammars.has_room(need("b"))


def test_a_grammar_waits_for_the_end_of_requests_by_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_grammars, "_MAX_USED_BYTES", 30)
    grammars = LaneGrammars()
    grammars.begin(need("a"))
    grammars.take_changes()
    assert not grammars.has_room(need("b"))
    grammars.end(need("a"))
    assert grammars.has_room(need("b"))
