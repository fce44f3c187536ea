"""Processes that compile grammars: what they answer, and that a hostile grammar ends its own."""

import asyncio
import json
import resource
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("xgrammar")

from raydix.ids import TenantId
from raydix.runtime.actors import grammar_process, grammar_turns
from raydix.runtime.actors.grammar_compilers import GrammarCompilers
from raydix.runtime.messages.client import FailureKind
from raydix.runtime.messages.grammar import Grammar, GrammarKind
from raydix.runtime.model.grammars.compiler_process import (
    LENGTH_BYTES,
    Compile,
    Compiled,
    Delayed,
    encode,
)
from raydix.runtime.model.grammars.compiling import MAX_CONTENT_BYTES, CompilerSetup
from raydix.runtime.model.grammars.vocabulary import Vocabulary
from raydix.runtime.scheduler.events import CompileGrammar, GrammarCompiled
from tests.hostile_grammars import NUM_GROUPS, hostile_grammars
from tests.runtime.api.small_tokenizers import byte_level_backend

SLOW = Grammar(
    kind=GrammarKind.JSON_SCHEMA,
    text='{"type": "string", "pattern": "^' + "[^a-b]{0,4000}" * 99 + '$"}',
)
START_CPU_S = 60.0
"""What starting the process takes at the most, on a busy machine."""
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
async def test_a_grammar_that_takes_too_long_is_refused_and_harms_no_other(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar_turns, "BUDGETS_S", (0.25, 0.5))
    slow, wrong, right = await bench.ask(SLOW, Grammar(kind=GrammarKind.EBNF, text="("), DIGITS)

    assert slow.failure is not None
    assert slow.failure.kind is FailureKind.BAD_REQUEST
    assert slow.is_lasting
    assert wrong.failure is not None
    assert wrong.failure.message.startswith("cannot be compiled: ")
    assert right.content is not None
    assert right.vocabulary is not None
    matcher = Vocabulary.of(right.vocabulary).matcher(right.content)
    assert not matcher.is_over


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[asyncio.subprocess.Process]:
    """The processes that compilers start."""
    started = []
    start = asyncio.create_subprocess_exec

    async def start_and_remember(*args: Any, **options: Any) -> asyncio.subprocess.Process:
        started.append(await start(*args, **options))
        return started[-1]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start_and_remember)
    return started


async def test_a_model_without_a_tokenizer_is_told(
    tmp_path: Path, started: list[asyncio.subprocess.Process]
) -> None:
    bench = Bench(tmp_path)

    [answer] = await bench.ask(DIGITS)

    assert answer.failure is not None
    assert answer.failure.kind is FailureKind.BAD_REQUEST
    assert answer.failure.message.startswith("structured output needs the model's tokenizer")
    await bench.compilers.stop()

    # The process was ending by itself then.
    [process] = started
    assert process.returncode is not None
    assert process._transport.is_closing()  # type: ignore[attr-defined]


@pytest.mark.slow
async def test_a_process_that_is_stopped_is_replaced(
    bench: Bench, started: list[asyncio.subprocess.Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.ask(DIGITS)
    started[0].send_signal(signal.SIGSTOP)
    with monkeypatch.context() as patch:
        patch.setattr(grammar_process, "_ANSWER_S", 0.1)
        [late] = await bench.ask(Grammar(kind=GrammarKind.REGEX, text="[a-z]"))
    assert late.failure is not None
    assert late.failure.kind is FailureKind.OVERLOADED
    assert not late.is_lasting

    [answer] = await bench.ask(Grammar(kind=GrammarKind.REGEX, text="[A-Z]"))
    assert answer.content is not None
    assert started[0].returncode is not None, "it has ended"
    assert len(started) == 2


@pytest.mark.slow
async def test_a_process_that_is_killed_costs_no_grammar(
    bench: Bench, started: list[asyncio.subprocess.Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar_turns, "BUDGETS_S", (1.0,))
    await bench.ask(DIGITS)
    started[0].kill()
    await started[0].wait()
    [answer] = await bench.ask(Grammar(kind=GrammarKind.REGEX, text="[a-z]"))
    assert answer.content is not None

    # This one is being compiled when its process is killed.
    asking = asyncio.create_task(bench.ask(SLOW, DIGITS))
    await until(lambda: bool(children_of(started[1].pid)))
    [child, *_] = children_of(started[1].pid)
    started[1].kill()

    slow, right = await asking
    assert slow.failure is not None
    assert right.content is not None
    await until(lambda: not Path(f"/proc/{child}/stat").exists())


@pytest.mark.slow
async def test_compilers_end_with_whoever_asks_them(tmp_path: Path) -> None:
    byte_level_backend().save_pretrained(tmp_path)
    # A Scheduler that is killed ends nothing: its end of the pipe closes, that is all.
    setup = {"model_path": str(tmp_path), "vocab_size": 300, "eos_token_ids": (0,)}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", grammar_process._PROGRAM),
        *(json.dumps(sys.path), json.dumps(setup)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    body = encode(Compile(number=0, grammar=SLOW, budget_s=1e6))
    process.stdin.write(len(body).to_bytes(LENGTH_BYTES, "little") + body)
    await until(lambda: bool(children_of(process.pid)))
    [child] = children_of(process.pid)

    process.stdin.close()
    await process.communicate()

    assert process.returncode == 0
    assert not Path(f"/proc/{child}/stat").exists()


@pytest.mark.slow
async def test_a_grammar_that_is_dropped_is_compiled_no_more(
    bench: Bench, started: list[asyncio.subprocess.Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar_turns, "BUDGETS_S", (1e6,))
    await bench.ask(DIGITS)
    effect = CompileGrammar(key=SLOW.key(), grammar=SLOW, tenant=TenantId(0))
    bench.compilers.start(effect, bench.setup)
    await until(lambda: bool(children_of(started[0].pid)))

    bench.compilers.drop(SLOW.key())

    await until(lambda: not children_of(started[0].pid))
    [right] = await bench.ask(Grammar(kind=GrammarKind.REGEX, text="[a-z]"))
    assert right.content is not None
    assert len(started) == 1


WAITING = """
import sys, time
from raydix.runtime.model.grammars import compiler_process

class Waiting:
    def compile(self, grammar):
        time.sleep(600 if grammar.text == "wait" else 0)
        return b"done"

def write(body):
    sys.stdout.buffer.write(len(body).to_bytes(compiler_process.LENGTH_BYTES, "little") + body)
    sys.stdout.buffer.flush()

compiler_process._Children(Waiting(), write).serve(open(0, "rb", buffering=0))
"""
"""Children whose compiler takes no time of a processor."""


async def test_a_grammar_that_waits_for_something_is_given_up_alone() -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", WAITING),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    for number, text in enumerate(["wait", "go"]):
        grammar = Grammar(kind=GrammarKind.EBNF, text=text)
        body = encode(Compile(number=number, grammar=grammar, budget_s=0.05))
        process.stdin.write(len(body).to_bytes(LENGTH_BYTES, "little") + body)

    answers = [await grammar_process._answer(process) for _ in range(2)]

    assert answers == [Compiled(number=1, content=b"done"), Delayed(number=0)]
    process.stdin.close()
    await process.communicate()


def children_of(process_id: int | None) -> list[int]:
    """The processes that a process has started."""
    path = Path(f"/proc/{process_id}/task/{process_id}/children")
    return [int(each) for each in path.read_text().split()]


async def until(is_so: Callable[[], bool]) -> None:
    """Wait for a state; the test's time limit bounds it."""
    while not is_so():
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("program", ["raise SystemExit", "import time; time.sleep(99)"])
async def test_a_process_that_does_not_start_is_no_grammars_fault(
    bench: Bench, program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar_process, "_PROGRAM", program)
    monkeypatch.setattr(grammar_process, "START_S", 0.5)

    [answer] = await bench.ask(DIGITS)

    assert answer.failure is not None
    assert answer.failure.kind is FailureKind.ENGINE_DEAD
    assert not answer.is_lasting


@pytest.mark.slow
@pytest.mark.part
@pytest.mark.parametrize("group", range(NUM_GROUPS))
async def test_hostile_grammars_are_compiled_or_refused_by_name_within_bounds(
    bench: Bench, group: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    budgets_s = (0.1, 0.4)
    monkeypatch.setattr(grammar_turns, "BUDGETS_S", budgets_s)
    hostile = hostile_grammars(group)
    await bench.ask(DIGITS)
    before_s = children_cpu_s()

    *answers, right = await bench.ask(*hostile, Grammar(kind=GrammarKind.REGEX, text="[a-z]"))

    assert right.content is not None
    for grammar, answer in zip(hostile, answers, strict=True):
        if answer.content is not None:
            assert len(answer.content) <= MAX_CONTENT_BYTES
            continue
        assert answer.failure is not None
        assert answer.failure.kind is FailureKind.BAD_REQUEST, grammar
        assert answer.is_lasting, (grammar, answer)
        assert len(answer.failure.message) < 1000
    await bench.compilers.stop()
    # All that has been used since is the process's own start and what it was asked.
    assert children_cpu_s() - before_s < START_CPU_S + len(hostile) * sum(budgets_s)


def children_cpu_s() -> float:
    """The seconds of a processor of processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
