"""Grammars wait for compilers in turns of their tenants, and never while one is idle."""

import asyncio

import pytest

from raydix.ids import GrammarKey, TenantId
from raydix.runtime.actors import grammar_compilers
from raydix.runtime.actors.grammar_compilers import GrammarCompilers
from raydix.runtime.actors.grammar_turns import GrammarTurns
from raydix.runtime.messages.grammar import Grammar, GrammarKind
from raydix.runtime.model.grammars.compiling import CompilerSetup
from raydix.runtime.scheduler.events import CompileGrammar, GrammarCompiled

SETUP = CompilerSetup(model_path="nowhere", vocab_size=3, eos_token_ids=(0,))
SLOW = "slow"


def effect(text: str, tenant: int = 0) -> CompileGrammar:
    grammar = Grammar(kind=GrammarKind.REGEX, text=text)
    return CompileGrammar(key=grammar.key(), grammar=grammar, tenant=TenantId(tenant))


class ModelledProcess:
    """Compiles at once, but for a grammar that goes on for ever."""

    vocabulary = b""

    def __init__(self, _: CompilerSetup) -> None:
        self.has_ended = asyncio.Event()

    async def compile(self, grammar: Grammar) -> bytes:
        if grammar.text == SLOW:
            await self.has_ended.wait()
        return b"compiled"

    async def end(self) -> None:
        self.has_ended.set()


def test_tenants_take_turns_and_each_ones_grammars_come_in_their_order() -> None:
    turns = GrammarTurns()
    for each in (effect("a1", 1), effect("a2", 1), effect("a3", 1), effect("b1", 2)):
        turns.add(each)
    taken = [turns.take().grammar.text for _ in range(2)]
    turns.add(effect("b2", 2))

    taken += [turns.take().grammar.text for _ in range(3)]

    assert taken == ["a1", "b1", "a2", "b2", "a3"]


async def test_a_slow_grammar_holds_up_none_that_comes_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(grammar_compilers, "_Process", ModelledProcess)
    answers: asyncio.Queue[GrammarCompiled] = asyncio.Queue()
    compilers = GrammarCompilers(answers.put_nowait)

    compilers.start(effect(SLOW), SETUP)
    await asyncio.sleep(0)
    compilers.start(effect("quick"), SETUP)
    keys: list[GrammarKey] = [(await asyncio.wait_for(answers.get(), 5)).key]
    compilers.start(effect("quick too"), SETUP)
    keys.append((await asyncio.wait_for(answers.get(), 5)).key)

    assert keys == [effect("quick").key, effect("quick too").key]
    await compilers.stop()
