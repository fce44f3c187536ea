"""Requests with a grammar: what is compiled, who waits for it, and what ranks are sent."""

from dataclasses import replace

import pytest

from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.client import FailureKind, RequestFailure
from raydix.runtime.messages.grammar import MAX_GRAMMAR_BYTES, Grammar, GrammarKind
from raydix.runtime.messages.plan import DeviceSampling, StepPlan, StepResult, TransfersDone
from raydix.runtime.scheduler import events
from raydix.runtime.scheduler.events import DropGrammar
from raydix.runtime.scheduler.life import grammars
from raydix.runtime.scheduler.ranks import lane_grammars
from raydix.runtime.scheduler.request.grammar_need import GrammarNeed
from tests.runtime.scheduler.core_driver import CLIENT, CoreDriver

DIGITS = Grammar(kind=GrammarKind.REGEX, text="[0-9]+")
LETTERS = Grammar(kind=GrammarKind.REGEX, text="[a-z]+")
PROMPT = [1, 2, 3, 4, 5]


class Driver(CoreDriver):
    """A driver that answers as compilers of grammars do, and tells of slow ones."""

    slow_slots: tuple[int, ...] = ()

    def report(self, rank: int, message: StepResult | TransfersDone) -> None:
        # Then another request may be in the slot.
        if isinstance(message, StepResult) and not self.endings:
            message = replace(message, slow_slots=int32_array(self.slow_slots))
        super().report(rank, message)

    def compile(self, grammar: Grammar, content: bytes = b"compiled") -> None:
        self.send(
            events.GrammarCompiled(key=grammar.key(), content=content, vocabulary=b"vocabulary")
        )

    def fail(self, grammar: Grammar, kind: FailureKind | None = None) -> None:
        """`kind`: of a failure that is not the grammar's own."""
        failure = RequestFailure(kind=kind or FailureKind.BAD_REQUEST, message="is wrong.")
        self.send(
            events.GrammarCompiled(key=grammar.key(), failure=failure, is_lasting=kind is None)
        )

    @property
    def plan(self) -> StepPlan:
        """The last one by which requests come."""
        return [plan for plan in self.plans[0] if plan.added][-1]


def test_a_request_runs_once_its_grammar_is_compiled_and_its_rank_gets_it_with_the_plan() -> None:
    driver = Driver()
    driver.submit(PROMPT, grammar=DIGITS)
    assert not driver.plans[0]

    driver.compile(DIGITS)

    changes = driver.plan.grammars
    assert changes is not None
    assert changes.vocabulary == b"vocabulary"
    assert [each.content for each in changes.compiled] == [b"compiled"]
    assert driver.plan.added[0].sampling.grammar == DIGITS.key()


def test_a_third_plan_is_on_its_way_to_ranks_that_make_masks_however_long_steps_take() -> None:
    driver = Driver()
    driver.submit(PROMPT, grammar=DIGITS, max_tokens=40)
    driver.compile(DIGITS)
    for _ in range(10):
        driver.step(seconds=0.02)
    assert len(driver.plans[0]) == 3

    driver.submit([7, 8, 9], max_tokens=2)
    from_prompt_on = set()
    while driver.plans[0]:
        driver.step(seconds=0.02)
        for index, plan in enumerate(driver.plans[0]):
            if (plan.row_num_tokens > 1).any():
                from_prompt_on.add(len(driver.plans[0]) - index)
    assert max(from_prompt_on) == 2, "one at most is sent behind a prompt's"


def test_others_run_while_a_grammar_is_compiled() -> None:
    driver = Driver()
    driver.submit(PROMPT, grammar=DIGITS)
    other = driver.submit([7, 8, 9])

    assert [each.request_id for each in driver.plan.added] == [other]
    assert driver.plan.grammars is None


def test_a_grammar_that_is_known_is_neither_compiled_nor_sent_again() -> None:
    driver = Driver()
    name = driver.submit(PROMPT, grammar=DIGITS, max_tokens=1)
    driver.compile(DIGITS)
    driver.run()
    assert driver.answers[name].ending == "length"

    driver.submit(PROMPT, grammar=DIGITS)

    assert driver.plan.added[0].sampling.grammar == DIGITS.key()
    assert driver.plan.grammars is None


def test_ranks_that_attach_anew_are_sent_grammars_again() -> None:
    driver = Driver()
    driver.submit(PROMPT, grammar=DIGITS)
    driver.compile(DIGITS)
    driver.lose_rank(0)

    driver.attach_rank(0, incarnation=2)

    assert driver.plan.grammars is not None
    assert driver.plan.grammars.vocabulary == b"vocabulary"


def test_a_grammar_that_cannot_be_compiled_fails_those_who_wait_and_is_refused_from_then_on() -> (
    None
):
    driver = Driver()
    waiting = driver.submit(PROMPT, grammar=DIGITS)
    driver.fail(DIGITS)
    later = driver.submit(PROMPT, grammar=DIGITS)

    assert driver.answers[waiting].ending == "BadRequest"
    assert driver.answers[later].ending == "BadRequest"


@pytest.mark.parametrize("kind", [FailureKind.ENGINE_DEAD, FailureKind.BAD_REQUEST])
def test_a_grammar_for_which_there_was_no_process_or_time_is_tried_again(kind: FailureKind) -> None:
    driver = Driver()
    waiting = driver.submit(PROMPT, grammar=DIGITS)
    driver.fail(DIGITS, kind)
    later = driver.submit(PROMPT, grammar=DIGITS)
    driver.compile(DIGITS)

    assert driver.answers[waiting].ending == kind
    assert driver.plan.added[0].request_id == later


def test_an_abort_while_its_grammar_is_compiled_leaves_nothing() -> None:
    driver = Driver()
    name = driver.submit(PROMPT, grammar=DIGITS)
    driver.abort(name)
    driver.submit(PROMPT, name=name)

    driver.fail(DIGITS)

    assert driver.plan.added[0].request_id == name
    assert driver.endings == [name]


def test_a_grammar_is_dropped_when_the_last_one_that_waits_for_it_ends() -> None:
    driver = Driver()
    names = [driver.submit(PROMPT, grammar=DIGITS) for _ in range(2)]
    dropped = []
    for name in names:
        driver.abort(name)
        dropped.append([each for each in driver.compilations if isinstance(each, DropGrammar)])

    assert dropped == [[], [DropGrammar(key=DIGITS.key())]]
    driver.submit(PROMPT, grammar=DIGITS)
    assert driver.compilations[-1] == driver.compilations[0]


def test_a_grammar_is_dropped_though_who_waits_for_it_ends_as_the_engine_sleeps() -> None:
    driver = Driver(max_asleep_wait_s=1.0, num_lanes=1)
    driver.send(events.FallAsleep(with_weights=False))
    name = driver.submit(PROMPT, grammar=DIGITS)
    driver.wait(2.0)

    assert driver.endings == [name]
    assert driver.compilations[-1] == DropGrammar(key=DIGITS.key())


def test_what_was_dropped_may_come_all_the_same() -> None:
    driver = Driver()
    driver.abort(driver.submit(PROMPT, grammar=DIGITS))
    driver.compile(DIGITS)

    name = driver.submit(PROMPT, grammar=DIGITS)

    assert driver.plan.added[0].request_id == name


def test_only_so_many_grammars_wait_to_be_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammars, "_MAX_COMPILING", 1)
    driver = Driver()
    driver.submit(PROMPT, grammar=DIGITS)
    same = driver.submit(PROMPT, grammar=DIGITS)
    other = driver.submit(PROMPT, grammar=LETTERS)

    assert driver.answers[other].ending == "Overloaded"
    assert same not in driver.endings
    # What was taken in before goes on, however many wait.
    again = driver.submit(PROMPT, grammar=LETTERS, known_output=int32_array([]))
    assert again not in driver.endings


def test_old_grammars_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_grammars, "_MAX_KEPT_BYTES", 10)
    driver = Driver()
    driver.submit(PROMPT, grammar=DIGITS, max_tokens=1)
    driver.compile(DIGITS, b"x" * 20)
    driver.run()
    driver.submit(PROMPT, grammar=LETTERS)
    driver.compile(LETTERS, b"y")

    assert driver.plan.grammars is not None
    assert driver.plan.grammars.dropped == (DIGITS.key(),)


@pytest.mark.parametrize("num_logprobs", [None, 0])
def test_a_grammar_for_which_steps_wait_ends_its_request_alone(num_logprobs: int | None) -> None:
    driver = Driver()
    sampling = DeviceSampling(seed=0, num_logprobs=num_logprobs)
    name = driver.submit(PROMPT, grammar=DIGITS, max_tokens=9, sampling=sampling)
    driver.compile(DIGITS)
    [added] = driver.plan.added
    driver.slow_slots = (added.slot,)
    other = driver.submit([7, 8, 9], max_tokens=9)

    driver.run()

    assert driver.answers[name].ending == "BadRequest"
    assert driver.answers[other].ending == "length"


@pytest.mark.parametrize("bound", ["_MAX_USED_BYTES", "_MAX_UNSENT_BYTES"])
def test_only_so_many_bytes_of_grammars_run_and_others_wait_for_their_end(
    bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane_grammars, bound, 10)
    driver = Driver()
    first = driver.submit(PROMPT, grammar=DIGITS)
    second = driver.submit([7, 8, 9], grammar=LETTERS)
    driver.compile(LETTERS, b"y" * 8)
    driver.compile(DIGITS, b"x" * 8)

    driver.run()

    assert {driver.answers[name].ending for name in (first, second)} == {"length"}


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"grammar": replace(DIGITS, text="a" * (MAX_GRAMMAR_BYTES + 1))}, "too long"),
        (
            {"grammar": DIGITS, "sampling": DeviceSampling(seed=0, min_tokens=2)},
            "contradicts a minimum",
        ),
        ({"sampling": DeviceSampling(seed=0, grammar=DIGITS.key())}, "named by its key"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_what_cannot_be_is_refused_at_once(fields: dict[str, object], what: str) -> None:
    driver = Driver()
    name = driver.submit(PROMPT, client=CLIENT, **fields)

    assert driver.answers[name].ending == "BadRequest"


def test_grammars_of_one_tenant_leave_room_for_those_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(grammars, "_MAX_COMPILING", 2)
    driver = Driver()
    driver.submit(PROMPT, grammar=DIGITS, cache_salt="alice/x")
    second = driver.submit(PROMPT, grammar=LETTERS, cache_salt="alice/y")
    other = driver.submit(PROMPT, grammar=LETTERS, cache_salt="bob/")

    assert driver.answers[second].ending == "Overloaded"
    assert other not in driver.endings


def test_a_tenant_cannot_tell_what_another_has_had_compiled() -> None:
    alice, other_salt, bob, nobody = (
        GrammarNeed(DIGITS, salt).key for salt in ("alice/x", "alice/y", "bob/", None)
    )
    assert alice == other_salt
    assert len({alice, bob, nobody}) == 3
    assert nobody == DIGITS.key()
