"""The process that compiles grammars, as the Scheduler's actor sees it."""

import asyncio
import contextlib
import itertools
import json
import sys
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from typing import assert_never

import msgspec

from raydix.errors import EngineDead
from raydix.runtime.messages.grammar import Grammar
from raydix.runtime.model.grammars.compiler_process import (
    LENGTH_BYTES,
    START_S,
    Answer,
    Compile,
    Compiled,
    Delayed,
    Outcome,
    OverBudget,
    Question,
    Ready,
    Refused,
    Stop,
    Unready,
    encode,
)
from raydix.runtime.model.grammars.compiling import CompilerSetup

_MAX_ANSWER_BYTES = 256 << 20
_ANSWER_S = 600.0
"""The longest time for an answer: then the machine has no time for a grammar, however small."""
_PROGRAM = """
import json, os, sys
sys.path[:] = json.loads(sys.argv[1])
os.nice(10)
answers = os.fdopen(os.dup(1), "wb")
os.dup2(2, 1)
from raydix.runtime.model.checkpoint.hub import settings_folder
from raydix.runtime.model.grammars.compiler_process import serve
from raydix.runtime.model.grammars.compiling import CompilerSetup
values = json.loads(sys.argv[2])
setup = CompilerSetup(**{**values, "eos_token_ids": tuple(values["eos_token_ids"])})
serve(open(0, "rb", buffering=0), answers, settings_folder, setup)
"""
"""The program of the process. What libraries print goes to its errors."""


class NotStarted(Exception):
    """There is no process, which says nothing of any grammar."""


class GrammarProcess:
    """Owns: the process, started when it is first needed and after each death."""

    def __init__(self, setup: CompilerSetup) -> None:
        self._setup = setup
        self._life: _Life | None = None
        self._numbers = itertools.count()
        self._asked: dict[int, asyncio.Future[Outcome]] = {}

    async def compile(self, grammar: Grammar, budget_s: float) -> tuple[Outcome, bytes]:
        """What comes of a grammar, and the vocabulary that it is read with.

        Nobody compiles it any more when this is cancelled.

        Raises NotStarted; EngineDead if the process ends; TimeoutError, and then it ends.
        """
        loop = asyncio.get_running_loop()
        if self._life is None:
            ready = loop.create_future()
            self._life = _Life(ready, loop.create_task(self._live(ready)))
        # Others may wait for it as well.
        started = await asyncio.shield(self._life.ready)
        number = next(self._numbers)
        if isinstance(started, Unready):
            return Refused(number=number, reason=started.reason, is_lasting=False), b""
        answer = self._asked[number] = loop.create_future()
        started.send(Compile(number=number, grammar=grammar, budget_s=budget_s))
        try:
            async with asyncio.timeout(_ANSWER_S):
                return await answer, started.vocabulary
        except TimeoutError:
            # Stopped or stuck, it may never answer anybody: the next that asks gets another one.
            started.end()
            raise
        finally:
            del self._asked[number]
            if answer.cancelled():
                started.send(Stop(number=number))

    async def stop(self) -> None:
        """End the process."""
        if self._life is not None:
            self._life.task.cancel()
            await asyncio.gather(self._life.task, return_exceptions=True)

    async def _live(self, ready: "asyncio.Future[_Started]") -> None:
        """Start the process, and pass its answers on until it ends."""
        error: Exception = EngineDead("the compiler of grammars was ended")
        try:
            async with _running(self._setup) as process:
                async with asyncio.timeout(START_S):
                    first = await _answer(process)
                match first:
                    case Unready():
                        ready.set_result(first)
                        return
                    case Ready():
                        ready.set_result(_Compiler(process, first.vocabulary))
                    case _:
                        raise EngineDead("it answers before it was asked")
                while True:
                    self._pass_on(await _answer(process))
        except (EngineDead, TimeoutError, OSError) as caught:
            error = caught
        finally:
            self._life = None
            if not ready.done():
                reason = str(error) or f"it takes more than {START_S:g} s"
                text = f"no compiler of grammars can be started: {reason}."
                ready.set_exception(NotStarted(text))
                # Nobody may wait for it.
                ready.exception()
            for asked in self._asked.values():
                if not asked.done():
                    asked.set_exception(EngineDead(str(error)))

    def _pass_on(self, answer: Answer) -> None:
        match answer:
            case Compiled() | Refused() | OverBudget() | Delayed():
                asked = self._asked.get(answer.number)
                # Nobody may wait for it any more.
                if asked is not None and not asked.done():
                    asked.set_result(answer)
            case Ready() | Unready():
                raise EngineDead("the compiler of grammars starts twice")
            case _:
                assert_never(answer)


class _Compiler:
    """A process that is ready."""

    def __init__(self, process: asyncio.subprocess.Process, vocabulary: bytes) -> None:
        self._process = process
        self.vocabulary = vocabulary

    def send(self, question: Question) -> None:
        """Tell it something. One that has ended answers nothing."""
        assert self._process.stdin is not None, "it was opened with the process"
        body = encode(question)
        self._process.stdin.write(len(body).to_bytes(LENGTH_BYTES, "little") + body)

    def end(self) -> None:
        """End it, with all that it compiles: those who wait for that hear that it has ended."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()


_Started = _Compiler | Unready


@dataclass(frozen=True, slots=True)
class _Life:
    """One process, from its start to its end."""

    ready: "asyncio.Future[_Started]"
    task: "asyncio.Task[None]"
    """What starts it, and listens to it until it ends."""


@contextlib.asynccontextmanager
async def _running(setup: CompilerSetup) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process that is ended with the block, as are those that compile in it."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        _PROGRAM,
        json.dumps(sys.path),
        json.dumps(asdict(setup)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await _ended(process)


async def _ended(process: asyncio.subprocess.Process) -> None:
    """Wait until a process that was killed has ended and its pipes are closed, in any case.

    Whoever cancels that would leave the pipes to a loop that may run no more.
    """
    ending = asyncio.ensure_future(process.communicate())
    while not ending.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.shield(ending)


async def _answer(process: asyncio.subprocess.Process) -> Answer:
    """The next answer. Raises EngineDead if there is none any more."""
    assert process.stdout is not None, "it was opened with the process"
    try:
        head = await process.stdout.readexactly(LENGTH_BYTES)
        length = int.from_bytes(head, "little")
        if length > _MAX_ANSWER_BYTES:
            raise EngineDead(f"the compiler of grammars answers with {length} bytes")
        return msgspec.msgpack.decode(await process.stdout.readexactly(length), type=Answer)
    except (asyncio.IncompleteReadError, msgspec.DecodeError) as error:
        raise EngineDead("the compiler of grammars has ended") from error
