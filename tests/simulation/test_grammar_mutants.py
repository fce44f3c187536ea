"""Mutants of how grammars reach the tokens that are sampled: random workloads find each."""

from dataclasses import replace
from typing import Any

import pytest

from raydix.runtime.messages.plan import AddedRequest
from raydix.runtime.model.grammars.slot_matchers import SlotMatchers
from raydix.runtime.scheduler.life.transitions import Transitions
from raydix.runtime.scheduler.ranks.lane_grammars import LaneGrammars
from raydix.runtime.scheduler.request.request import RequestState
from tests.simulation.test_mutants import Case, find
from tests.simulation.workload import BASE_SETTINGS, Workload

RETRACTING = Workload(
    seed=0,
    settings=replace(BASE_SETTINGS, num_pages=(30,), max_running_requests=16),
    storage=None,
    grammar_fraction=0.7,
    num_rank_kills=2,
)
"""Little room and dying ranks: requests run again with a part of their output."""


def matchers_begin_a_token_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a retraction the matcher is one token behind."""
    begin = SlotMatchers._begin

    def begin_short(self: SlotMatchers, added: AddedRequest, key: Any) -> Any:
        made = begin(self, added, key)
        output = added.token_ids[added.num_prompt_tokens :].tolist()
        made._matcher = self._library.matcher(key, output[:-1])
        return made

    monkeypatch.setattr(SlotMatchers, "_begin", begin_short)


def matchers_go_by_another_grammar(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slot keeps the grammar of the request that was in it before."""
    apply = SlotMatchers.apply

    def apply_but_remove(self: SlotMatchers, plan: Any) -> None:
        former = dict(self._of_slot)
        apply(self, plan)
        for added in plan.added:
            if added.slot in former and added.slot in self._of_slot:
                self._of_slot[added.slot]._matcher = former[added.slot]._matcher

    monkeypatch.setattr(SlotMatchers, "apply", apply_but_remove)


def ranks_are_not_sent_grammars_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ranks that follow lost ones count as having the grammars that those had."""
    known: dict[str, Any] = {}
    begin = LaneGrammars.begin

    def begin_as_known(self: LaneGrammars, need: Any) -> None:
        begin(self, need)
        if need.key is not None and known.setdefault(need.key, self) is not self:
            self._unsent.pop(need.key, None)

    monkeypatch.setattr(LaneGrammars, "begin", begin_as_known)


def compiled_grammars_wake_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits for a grammar is not told that it has come."""
    monkeypatch.setattr(Transitions, "take_up_grammar", lambda self, request: None)


def retracted_requests_go_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that runs again is told to its rank without its grammar."""
    introduce = RequestState.introduce

    def introduce_free(self: RequestState) -> AddedRequest | None:
        added = introduce(self)
        if added is None or not self.num_output:
            return added
        return replace(added, sampling=replace(added.sampling, grammar=None))

    monkeypatch.setattr(RequestState, "introduce", introduce_free)


CASES = [
    Case(mutant=mutant, workload=RETRACTING)
    for mutant in (
        matchers_begin_a_token_short,
        matchers_go_by_another_grammar,
        ranks_are_not_sent_grammars_anew,
        compiled_grammars_wake_nobody,
        retracted_requests_go_free,
    )
]


@pytest.mark.part
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.mutant.__name__)
def test_mutant_is_found(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    find(case, monkeypatch)
