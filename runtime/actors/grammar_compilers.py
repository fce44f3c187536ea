"""Grammars are compiled outside the Scheduler's loop, in turns and within budgets."""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import assert_never

from raydix.errors import EngineDead
from raydix.ids import GrammarKey
from raydix.runtime.actors.grammar_process import GrammarProcess, NotStarted
from raydix.runtime.actors.grammar_turns import Attempt, GrammarTurns
from raydix.runtime.messages.client import FailureKind, RequestFailure
from raydix.runtime.model.grammars.compiler_process import (
    Compiled,
    Delayed,
    Outcome,
    OverBudget,
    Refused,
)
from raydix.runtime.model.grammars.compiling import CompilerSetup
from raydix.runtime.scheduler.events import CompileGrammar, GrammarCompiled

logger = logging.getLogger(__name__)

_RETRY_AFTER_S = 5.0


class GrammarCompilers:
    """Owns: the process in whose children grammars are compiled, and the tasks that wait for it.

    The Scheduler's core bounds how many grammars wait.
    """

    def __init__(self, on_compiled: Callable[[GrammarCompiled], None]) -> None:
        self._on_compiled = on_compiled
        self._turns = GrammarTurns()
        self._process: GrammarProcess | None = None
        self._tasks: dict[Attempt, asyncio.Task[None]] = {}

    def start(self, effect: CompileGrammar, setup: CompilerSetup) -> None:
        """Compile a grammar in its turn; the answer comes through `on_compiled`, on the loop."""
        if self._process is None:
            self._process = GrammarProcess(setup)
        self._turns.add(effect)
        self._begin(self._process)

    def drop(self, key: GrammarKey) -> None:
        """Compile a grammar no more, for which nobody waits: it is not answered."""
        for attempt in self._turns.drop(key):
            self._tasks[attempt].cancel()

    async def stop(self) -> None:
        """End all processes; no grammar is compiled any more."""
        process, self._process = self._process, None
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if process is not None:
            await process.stop()

    def _begin(self, process: GrammarProcess) -> None:
        while (attempt := self._turns.begin()) is not None:
            task = asyncio.get_running_loop().create_task(self._work(process, attempt))
            self._tasks[attempt] = task
            task.add_done_callback(partial(self._end, process, attempt))

    def _end(self, process: GrammarProcess, attempt: Attempt, _: asyncio.Task[None]) -> None:
        del self._tasks[attempt]
        self._turns.end(attempt)
        if self._process is not None:
            self._begin(process)

    async def _work(self, process: GrammarProcess, attempt: Attempt) -> None:
        """Try a grammar once, and answer it, or let it be tried again."""
        try:
            outcome, vocabulary = await _outcome(process, attempt)
        except (NotStarted, EngineDead) as error:
            failure = RequestFailure(kind=FailureKind.ENGINE_DEAD, message=str(error))
            return self._fail(attempt, failure)
        except TimeoutError:
            return self._fail(attempt, _overloaded())
        match outcome:
            case Compiled():
                key, content = attempt.effect.key, outcome.content
                self._on_compiled(GrammarCompiled(key=key, content=content, vocabulary=vocabulary))
            case Refused():
                self._refuse(attempt, outcome.reason, is_lasting=outcome.is_lasting)
            case OverBudget() if attempt.is_last:
                text = f"takes more than {attempt.budget_s:g} s to compile. Make it smaller."
                self._refuse(attempt, text, is_lasting=True)
            case Delayed() if attempt.is_last:
                self._fail(attempt, _overloaded())
            case OverBudget() | Delayed():
                self._turns.try_longer(attempt)
            case _:
                assert_never(outcome)

    def _refuse(self, attempt: Attempt, text: str, *, is_lasting: bool) -> None:
        failure = RequestFailure(kind=FailureKind.BAD_REQUEST, message=text)
        self._fail(attempt, failure, is_lasting=is_lasting)

    def _fail(self, attempt: Attempt, failure: RequestFailure, *, is_lasting: bool = False) -> None:
        kind = attempt.effect.grammar.kind
        logger.info("a %s is refused: it %s", kind, failure.message)
        self._on_compiled(
            GrammarCompiled(key=attempt.effect.key, failure=failure, is_lasting=is_lasting)
        )


def _overloaded() -> RequestFailure:
    text = f"waits for a processor. Try again in {_RETRY_AFTER_S:g} s."
    return RequestFailure(kind=FailureKind.OVERLOADED, message=text, retry_after_s=_RETRY_AFTER_S)


async def _outcome(process: GrammarProcess, attempt: Attempt) -> tuple[Outcome, bytes]:
    """What comes of a try. A process that ends was not ended by the grammar: another one tries."""
    grammar, budget_s = attempt.effect.grammar, attempt.budget_s
    try:
        return await process.compile(grammar, budget_s)
    except EngineDead:
        return await process.compile(grammar, budget_s)
