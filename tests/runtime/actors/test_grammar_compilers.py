"""Processes that compile grammars: what they answer, and that a hostile grammar ends its own."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("xgrammar")

from raydix.ids import TenantId
from raydix.runtime.actors import grammar_compilers
from raydix.runtime.actors.grammar_compilers import GrammarCompilers
from raydix.runtime.messages.client import FailureKind
from raydix.runtime.messages.grammar import Grammar, GrammarKind
from raydix.runtime.model.grammars.compiling import MAX_CONTENT_BYTES, CompilerSetup
from raydix.runtime.model.grammars.vocabulary import Vocabulary
from raydix.runtime.scheduler.events import CompileGrammar, GrammarCompiled
from tests.runtime.api.small_tokenizers import byte_level_backend

SLOW = Grammar(
    kind=GrammarKind.JSON_SCHEMA, text='{"type": "string", "pattern": "^[^a-b]{0,4000}$"}'
)
DIGITS = Grammar(kind=GrammarKind.REGEX, text="[0-9]{3}")


class Bench:
    """Compilers for a small tokenizer."""

    def __init__(self, folder: Path) -> None:
        self.setup = CompilerSetup(model_path=str(folder), vocab_size=300, eos_token_ids=(0,))
        self._answers: asyncio.Queue[GrammarCompiled] = asyncio.Queue()
        self.compilers = GrammarCompilers(self._answers.put_nowait)

    async def ask(self, *grammars: Grammar) -> list[GrammarCompiled]:
        """The answers, in the order of the questions."""
        for grammar in grammars:
            effect = CompileGrammar(key=grammar.key(), grammar=grammar, tenant=TenantId(0))
            self.compilers.start(effect, self.setup)
        answers = [await self._answers.get() for _ in grammars]
        by_key = {answer.key: answer for answer in answers}
        return [by_key[grammar.key()] for grammar in grammars]


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    byte_level_backend().save_pretrained(tmp_path)
    bench = Bench(tmp_path)
    yield bench
    await bench.compilers.stop()


@pytest.mark.slow
async def test_a_grammar_that_takes_too_long_ends_its_process_and_no_other_request(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.ask(DIGITS)
    monkeypatch.setattr(grammar_compilers, "COMPILE_S", 3.0)

    slow, wrong, right = await bench.ask(SLOW, Grammar(kind=GrammarKind.EBNF, text="("), DIGITS)

    assert slow.failure is not None
    assert slow.failure.kind is FailureKind.BAD_REQUEST
    assert wrong.failure is not None
    assert wrong.failure.message.startswith("cannot be compiled: ")
    assert right.content is not None
    assert right.vocabulary is not None
    matcher = Vocabulary.of(right.vocabulary).matcher(right.content)
    assert not matcher.is_over


async def test_a_model_without_a_tokenizer_is_told(tmp_path: Path) -> None:
    bench = Bench(tmp_path)

    [answer] = await bench.ask(DIGITS)

    assert answer.failure is not None
    assert answer.failure.message.startswith("structured output needs the model's tokenizer")
    await bench.compilers.stop()


@pytest.mark.slow
async def test_a_process_that_ended_while_idle_costs_no_grammar(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []
    start = asyncio.create_subprocess_exec

    async def start_and_remember(*args: Any, **options: Any) -> asyncio.subprocess.Process:
        started.append(await start(*args, **options))
        return started[-1]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start_and_remember)
    await bench.ask(DIGITS)
    [process] = started
    process.kill()
    await process.wait()

    [answer] = await bench.ask(Grammar(kind=GrammarKind.REGEX, text="[a-z]"))

    assert answer.content is not None


@pytest.mark.parametrize("program", ["raise SystemExit", "import time; time.sleep(99)"])
async def test_a_process_that_does_not_start_is_no_grammars_fault(
    bench: Bench, program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar_compilers, "_PROGRAM", program)
    monkeypatch.setattr(grammar_compilers, "_START_S", 0.5)

    [answer] = await bench.ask(DIGITS)

    assert answer.failure is not None
    assert answer.failure.kind is FailureKind.ENGINE_DEAD
    assert not answer.is_lasting


DEEP = 20_000
HOSTILE = [
    (GrammarKind.JSON_SCHEMA, "[" * DEEP),
    (GrammarKind.JSON_SCHEMA, '{"items":' * DEEP + "{}" + "}" * DEEP),
    (GrammarKind.JSON_SCHEMA, '{"$ref": "#"}'),
    (GrammarKind.JSON_SCHEMA, '{"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}'),
    (GrammarKind.JSON_SCHEMA, '{"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}'),
    (GrammarKind.JSON_SCHEMA, '{"type": "array", "minItems": 100000000000}'),
    (GrammarKind.JSON_SCHEMA, '{"type": "array", "minItems": 1e400}'),
    (GrammarKind.JSON_SCHEMA, '{"type": "string", "pattern": "' + "(a?){99}" * 300 + '"}'),
    (GrammarKind.JSON_SCHEMA, '{"enum": [' + ",".join(f'"{i:07}"' for i in range(9000)) + "]}"),
    (GrammarKind.JSON_SCHEMA, '{"type": "integer", "minimum": -1' + "0" * 4000 + "}"),
    (GrammarKind.REGEX, "(" * DEEP + "a" + ")" * DEEP),
    (GrammarKind.REGEX, "(a*)*" * 2000),
    (GrammarKind.REGEX, "(((a{1,500}){1,500}){1,500}){1,500}"),
    (GrammarKind.REGEX, "[^a]{0,100000}[^b]{0,100000}"),
    (GrammarKind.EBNF, 'root ::= root root | "a" | ""'),
    (GrammarKind.EBNF, "root ::= root"),
    (GrammarKind.EBNF, 'root ::= "a"{1000000000}'),
    (GrammarKind.EBNF, "root ::= " + "(" * DEEP + '"a"' + ")" * DEEP),
    (GrammarKind.EBNF, "root ::= " + " | ".join(f'r{i} "x"' for i in range(3000))),
    (GrammarKind.EBNF, "\n".join(f'r{i} ::= r{i + 1} r{i + 1} | "a"' for i in range(999))),
    (GrammarKind.STRUCTURAL_TAG, '{"type": "structural_tag", "format": {"type": "x"}}'),
    (GrammarKind.STRUCTURAL_TAG, '{"format":' * DEEP + "1" + "}" * DEEP),
    (GrammarKind.STRUCTURAL_TAG, "null"),
]


@pytest.mark.slow
@pytest.mark.part
async def test_hostile_grammars_are_answered_within_bounds(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.ask(DIGITS)
    monkeypatch.setattr(grammar_compilers, "COMPILE_S", 2.0)

    answers = await bench.ask(*(Grammar(kind=kind, text=text) for kind, text in HOSTILE))

    for answer in answers:
        if answer.content is not None:
            assert len(answer.content) <= MAX_CONTENT_BYTES
        else:
            assert answer.failure is not None
            assert answer.failure.kind is FailureKind.BAD_REQUEST
            assert len(answer.failure.message) < 1000
    [right] = await bench.ask(DIGITS)
    assert right.content is not None
