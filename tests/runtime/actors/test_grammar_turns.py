"""Grammars wait for their turn, and are tried for a short time first."""

import asyncio

import pytest

from raydix.ids import TenantId
from raydix.runtime.actors import grammar_compilers
from raydix.runtime.actors.grammar_compilers import GrammarCompilers
from raydix.runtime.actors.grammar_turns import BUDGETS_S, Attempt, GrammarTurns
from raydix.runtime.messages.grammar import Grammar, GrammarKind
from raydix.runtime.model.grammars.compiler_process import Compiled, Outcome, OverBudget
from raydix.runtime.model.grammars.compiling import CompilerSetup
from raydix.runtime.scheduler.events import CompileGrammar, GrammarCompiled

SETUP = CompilerSetup(model_path="nowhere", vocab_size=3, eos_token_ids=(0,))
SLOW = "slow"


def effect(text: str, tenant: int = 0) -> CompileGrammar:
    grammar = Grammar(kind=GrammarKind.REGEX, text=text)
    return CompileGrammar(key=grammar.key(), grammar=grammar, tenant=TenantId(tenant))


def begun(turns: GrammarTurns) -> Attempt:
    attempt = turns.begin()
    assert attempt is not None
    return attempt


def text_of(attempt: Attempt | None) -> str | None:
    return None if attempt is None else attempt.effect.grammar.text


def test_tenants_take_turns_and_each_ones_grammars_come_in_their_order() -> None:
    turns = GrammarTurns()
    for each in (effect("a1", 1), effect("a2", 1), effect("a3", 1), effect("b1", 2)):
        turns.add(each)
    taken = []
    for _ in range(2):
        attempt = begun(turns)
        taken.append(text_of(attempt))
        turns.end(attempt)
    turns.add(effect("b2", 2))

    while (later := turns.begin()) is not None:
        taken.append(text_of(later))
        turns.end(later)

    assert taken == ["a1", "b1", "a2", "b2", "a3"]


def test_what_takes_longer_comes_again_behind_others_and_takes_one_place_of_two() -> None:
    turns = GrammarTurns()
    for text in ("slow 1", "slow 2", "quick"):
        turns.add(effect(text))
    first, second = begun(turns), begun(turns)
    assert turns.begin() is None

    for attempt in (first, second):
        turns.end(attempt)
        turns.try_longer(attempt)
    longer, quick = begun(turns), begun(turns)

    assert (text_of(longer), longer.budget_s) == ("slow 1", BUDGETS_S[1])
    assert (text_of(quick), quick.budget_s) == ("quick", BUDGETS_S[0])
    turns.end(quick)
    # The second place is free, for one that is new.
    assert turns.begin() is None
    turns.add(effect("new"))
    assert text_of(turns.begin()) == "new"


def test_what_was_tried_less_comes_first_among_what_takes_longer() -> None:
    turns = GrammarTurns()
    turns.try_longer(Attempt(effect("slowest"), 1))
    turns.try_longer(Attempt(effect("slow"), 0))

    assert text_of(turns.begin()) == "slow"


def test_what_is_dropped_is_not_tried() -> None:
    turns = GrammarTurns()
    for text in ("a", "b", "c", "d"):
        turns.add(effect(text))
    tried = begun(turns)

    assert turns.drop(effect("a").key) == [tried]
    assert turns.drop(effect("b").key) == []

    assert text_of(turns.begin()) == "c"


class ModelledProcess:
    """Compiles at once, but for a grammar that takes all of its time, which is told when to."""

    def __init__(self, _: CompilerSetup) -> None:
        self.budgets: list[float] = []
        self.time_passes = asyncio.Event()
        self.num_stopped = 0

    async def compile(self, grammar: Grammar, budget_s: float) -> tuple[Outcome, bytes]:
        if grammar.text != SLOW:
            return Compiled(number=0, content=b"compiled"), b"vocabulary"
        self.budgets.append(budget_s)
        try:
            await self.time_passes.wait()
        except asyncio.CancelledError:
            self.num_stopped += 1
            raise
        return OverBudget(number=0), b""

    async def stop(self) -> None:
        """There is nothing to end."""


class Modelled:
    """Compilers with a modelled process."""

    def __init__(self) -> None:
        self._answers: asyncio.Queue[GrammarCompiled] = asyncio.Queue()
        self.compilers = GrammarCompilers(self._answers.put_nowait)

    def start(self, text: str) -> None:
        self.compilers.start(effect(text), SETUP)

    @property
    def process(self) -> ModelledProcess:
        process = self.compilers._process
        assert isinstance(process, ModelledProcess)
        return process

    async def answer(self) -> GrammarCompiled:
        return await asyncio.wait_for(self._answers.get(), 30)


@pytest.fixture
def modelled(monkeypatch: pytest.MonkeyPatch) -> Modelled:
    monkeypatch.setattr(grammar_compilers, "GrammarProcess", ModelledProcess)
    return Modelled()


async def test_a_slow_grammar_holds_up_none_that_comes_behind_it(modelled: Modelled) -> None:
    modelled.start(SLOW)
    await asyncio.sleep(0)
    modelled.start("quick")
    keys = [(await modelled.answer()).key]
    modelled.start("quick too")
    keys.append((await modelled.answer()).key)

    assert keys == [effect("quick").key, effect("quick too").key]
    await modelled.compilers.stop()


async def test_a_grammar_is_tried_longer_each_time_and_then_refused_for_ever(
    modelled: Modelled,
) -> None:
    modelled.start(SLOW)
    modelled.process.time_passes.set()

    answer = await modelled.answer()

    assert answer.failure is not None
    assert answer.failure.message == "takes more than 5 s to compile. Make it smaller."
    assert answer.is_lasting
    assert modelled.process.budgets == list(BUDGETS_S)


async def test_a_grammar_that_is_dropped_is_compiled_no_more_and_leaves_its_place(
    modelled: Modelled,
) -> None:
    for _ in range(2):
        modelled.start(SLOW)
    await asyncio.sleep(0)
    modelled.compilers.drop(effect(SLOW).key)
    modelled.start("quick")

    assert (await modelled.answer()).key == effect("quick").key
    assert modelled.process.num_stopped == 2
    await modelled.compilers.stop()
