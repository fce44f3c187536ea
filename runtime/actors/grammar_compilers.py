"""Grammars are compiled in processes of their own: one that takes too long is killed.

A process starts with the first grammar, which takes seconds, and stays.
"""

import asyncio
import contextlib
import json
import logging
import sys
from collections.abc import Awaitable, Callable
from dataclasses import asdict

import msgspec

from raydix.errors import EngineDead
from raydix.runtime.actors.grammar_turns import GrammarTurns
from raydix.runtime.messages.client import FailureKind, RequestFailure
from raydix.runtime.messages.grammar import Grammar
from raydix.runtime.model.grammars.compiling import Answer, CompilerSetup
from raydix.runtime.scheduler.events import CompileGrammar, GrammarCompiled

logger = logging.getLogger(__name__)

_NUM_PROCESSES = 2
"""More than one, as a hostile grammar holds up those behind it."""
_START_S = 120.0
COMPILE_S = 10.0
"""The longest time that a grammar may take to compile."""
_LENGTH_BYTES = 4
_MAX_ANSWER_BYTES = 256 << 20
_PROGRAM = """
import json, os, sys
sys.path[:] = json.loads(sys.argv[1])
os.nice(10)
answers = os.fdopen(os.dup(1), "wb")
os.dup2(2, 1)
from raydix.runtime.model.checkpoint.hub import settings_folder
from raydix.runtime.model.grammars.compiling import CompilerSetup, serve
values = json.loads(sys.argv[2])
setup = CompilerSetup(**{**values, "eos_token_ids": tuple(values["eos_token_ids"])})
serve(sys.stdin.buffer, answers, settings_folder, setup)
"""
"""The program of a compiling process. What libraries print goes to its errors."""


class _Refused(Exception):
    """The process says why there is no compiled grammar."""


class _NotStarted(Exception):
    """There is no process, which says nothing of the grammar."""


class _Process:
    """Owns: one compiling process, started when it is first needed and after each death."""

    def __init__(self, setup: CompilerSetup) -> None:
        self._setup = setup
        self._running: asyncio.subprocess.Process | None = None
        self.vocabulary = b""

    @property
    def is_running(self) -> bool:
        """Whether the process has started, and not been ended."""
        return self._running is not None

    async def compile(self, grammar: Grammar) -> bytes:
        """The content of the compiled grammar.

        Raises _Refused, _NotStarted; TimeoutError or EngineDead if the process had to be ended, or
        has.
        """
        is_new = self._running is None
        if is_new:
            await self._start()
        try:
            return await self._whole(self._ask(grammar), COMPILE_S)
        except EngineDead:
            if is_new:
                raise
        # Something else may have ended it before. Whatever ends a new one, too, ends any.
        await self._start()
        return await self._whole(self._ask(grammar), COMPILE_S)

    async def _start(self) -> None:
        try:
            await self._start_process()
        except (EngineDead, TimeoutError, OSError) as error:
            reason = str(error) or f"it takes more than {_START_S:g} s"
            raise _NotStarted(f"no compiler of grammars can be started: {reason}.") from error

    async def _start_process(self) -> None:
        self._running = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            _PROGRAM,
            json.dumps(sys.path),
            json.dumps(asdict(self._setup)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            self.vocabulary = await self._whole(self._answer(), _START_S)
        except _Refused:
            # It has ended with these words.
            await self.end()
            raise

    async def _whole(self, answer: Awaitable[bytes], timeout_s: float) -> bytes:
        """Wait for an answer; without one, or in the midst of it, the process ends."""
        try:
            async with asyncio.timeout(timeout_s):
                return await answer
        except _Refused:
            raise
        except BaseException:
            await self.end()
            raise

    async def _ask(self, grammar: Grammar) -> bytes:
        assert self._running is not None, "it was started"
        assert self._running.stdin is not None, "it was opened with the process"
        body = msgspec.msgpack.encode(grammar)
        try:
            self._running.stdin.write(len(body).to_bytes(_LENGTH_BYTES, "little") + body)
            await self._running.stdin.drain()
        except OSError as error:
            raise EngineDead(f"the compiler of grammars has ended: {error}") from error
        return await self._answer()

    async def _answer(self) -> bytes:
        assert self._running is not None, "it was started"
        assert self._running.stdout is not None, "it was opened with the process"
        reader = self._running.stdout
        try:
            length = int.from_bytes(await reader.readexactly(_LENGTH_BYTES), "little")
            if length > _MAX_ANSWER_BYTES:
                raise EngineDead(f"the compiler of grammars answers with {length} bytes")
            answer = msgspec.msgpack.decode(await reader.readexactly(length), type=Answer)
        except (asyncio.IncompleteReadError, msgspec.DecodeError) as error:
            raise EngineDead("the compiler of grammars ended in the midst of one") from error
        if answer.content is None:
            raise _Refused(answer.failure or "no reason is told")
        return answer.content

    async def end(self) -> None:
        """End the process; the next grammar starts another."""
        process, self._running = self._running, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


class GrammarCompilers:
    """Owns: the processes that compile grammars, and those that wait for one.

    The Scheduler's core bounds how many wait.
    """

    def __init__(self, on_compiled: Callable[[GrammarCompiled], None]) -> None:
        self._on_compiled = on_compiled
        self._turns = GrammarTurns()
        self._num_waiting = asyncio.Semaphore(0)
        self._num_open = 0
        """The grammars that wait, and the ones that are being compiled."""
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, effect: CompileGrammar, setup: CompilerSetup) -> None:
        """Compile a grammar in its turn; the answer comes through `on_compiled`, on the loop."""
        self._turns.add(effect)
        self._num_waiting.release()
        self._num_open += 1
        if len(self._tasks) < min(_NUM_PROCESSES, self._num_open):
            process = _Process(setup)
            self._tasks.append(asyncio.get_running_loop().create_task(self._work(process)))

    async def stop(self) -> None:
        """End all processes; no grammar is compiled any more."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _work(self, process: _Process) -> None:
        try:
            while True:
                await self._num_waiting.acquire()
                answer = await self._answer(process, self._turns.take())
                self._num_open -= 1
                self._on_compiled(answer)
        finally:
            await process.end()

    async def _answer(self, process: _Process, effect: CompileGrammar) -> GrammarCompiled:
        kind, is_lasting = FailureKind.BAD_REQUEST, False
        try:
            content = await process.compile(effect.grammar)
            return GrammarCompiled(key=effect.key, content=content, vocabulary=process.vocabulary)
        except _Refused as refused:
            # What has not started says it of every grammar, and may start later.
            text, is_lasting = str(refused), process.is_running
        except TimeoutError:
            text = f"takes more than {COMPILE_S:g} s to compile. Make it smaller."
        except EngineDead as error:
            text = f"ended the process that compiled it ({error}). Make it smaller."
        except _NotStarted as error:
            kind, text = FailureKind.ENGINE_DEAD, str(error)
        logger.info("a %s is refused: it %s", effect.grammar.kind, text)
        failure = RequestFailure(kind=kind, message=text, parameter=effect.grammar.parameter)
        return GrammarCompiled(key=effect.key, failure=failure, is_lasting=is_lasting)
