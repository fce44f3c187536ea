"""The process that compiles grammars for the vocabulary of one model, each in a child of its own.

A child has the vocabulary from the beginning, which takes seconds to read, and breaks its bounds
alone: of memory, of the time of a processor, and of that of a clock. The process itself waits, no
more: so it sees at once when its questions end, and ends with all its children.

Frames are four bytes of length, then msgpack.
"""

import contextlib
import ctypes
import gc
import io
import os
import resource
import selectors
import signal
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, NoReturn, assert_never

import msgspec

from raydix.errors import BadRequest, CheckpointError, RaydixError
from raydix.runtime.messages.grammar import Grammar, GrammarKind
from raydix.runtime.model.grammars.compiling import Compiler, CompilerSetup
from raydix.runtime.model.grammars.vocabulary import read_vocabulary

LENGTH_BYTES = 4
START_S = 120
"""The longest time until the process is ready."""
_MAX_MEMORY_BYTES = 2 << 30
"""What a grammar may take beside what the process has once it is ready."""
_MAX_WAIT_RATIO = 60
"""How much longer than the time of a processor that a grammar may take its child may live."""
_READ_BYTES = 1 << 20
_PR_SET_PDEATHSIG = 1
_OWN_FAULTS = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)
"""What a grammar does to the process that compiles it, whenever it is compiled."""
_FIRST = Grammar(kind=GrammarKind.REGEX, text="[0-9]+")
"""What the library makes when it is first used all children have from the process."""


class Compile(msgspec.Struct, frozen=True, tag=True):
    """Compile a grammar. It is answered once, unless it is stopped before."""

    number: int
    grammar: Grammar
    budget_s: float
    """The seconds of a processor that it may take."""


class Stop(msgspec.Struct, frozen=True, tag=True):
    """Nobody waits for this answer any more."""

    number: int


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The first answer: the process compiles."""

    vocabulary: bytes


class Unready(msgspec.Struct, frozen=True, tag=True):
    """The first and last answer: nothing can be compiled."""

    reason: str


class Compiled(msgspec.Struct, frozen=True, tag=True):
    """A grammar is compiled."""

    number: int
    content: bytes


class Refused(msgspec.Struct, frozen=True, tag=True):
    """A grammar cannot be compiled."""

    number: int
    reason: str
    is_lasting: bool = True
    """Whether it would be so again."""


class OverBudget(msgspec.Struct, frozen=True, tag=True):
    """A grammar was given up, as it takes longer than it may."""

    number: int


class Delayed(msgspec.Struct, frozen=True, tag=True):
    """A grammar was given up, as it had too little of a processor for too long."""

    number: int


Question = Compile | Stop
Outcome = Compiled | Refused | OverBudget | Delayed
Answer = Ready | Unready | Outcome
_Write = Callable[[bytes], None]


def encode(message: Question | Answer) -> bytes:
    """A message as it travels, without its length."""
    return msgspec.msgpack.encode(message)


def serve(
    questions: io.FileIO,
    answers: BinaryIO,
    find_folder: Callable[[str], Path],
    setup: CompilerSetup,
) -> None:
    """Compile until the questions end. `find_folder`: of the files of a model, by its path."""

    def write(body: bytes) -> None:
        answers.write(len(body).to_bytes(LENGTH_BYTES, "little") + body)
        answers.flush()

    # Until it waits for questions it does not see that they have ended.
    signal.alarm(START_S)
    try:
        folder = find_folder(setup.model_path)
        vocabulary = read_vocabulary(folder, setup.vocab_size, setup.eos_token_ids)
        compiler = Compiler(vocabulary)
        with contextlib.suppress(BadRequest):
            compiler.compile(_FIRST)
    except (RaydixError, ImportError) as error:
        write(encode(Unready(reason=_why_not(error))))
        return
    signal.alarm(0)
    # What is never collected is not copied for the children, either.
    gc.freeze()
    write(encode(Ready(vocabulary=vocabulary.content)))
    _Children(compiler, write).serve(questions)


def _why_not(error: Exception) -> str:
    if isinstance(error, ImportError):
        return (
            f"structured output needs a package that is not installed ({error}): "
            "pip install 'raydix[structured]'."
        )
    if isinstance(error, CheckpointError):
        return f"structured output needs the model's tokenizer: {error}"
    return str(error)


class _Child:
    """Owns: one process that compiles one grammar, and what it has answered so far."""

    def __init__(self, compiler: Compiler, asked: Compile) -> None:
        self.number = asked.number
        self.pipe, answer = os.pipe()
        self._read = bytearray()
        parent_id = os.getpid()
        self._process_id = os.fork()
        if self._process_id == 0:
            _compile_and_exit(compiler, asked, answer, parent_id)
        os.close(answer)

    def read(self) -> bool:
        """Take what it has answered; False: that was all."""
        part = os.read(self.pipe, _READ_BYTES)
        self._read += part
        return bool(part)

    def outcome(self) -> bytes:
        """The answer, once all of it was read: its own one if it has come to its end."""
        status = self._wait()
        if status == 0:
            return bytes(self._read)
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        if number == signal.SIGPROF:
            return encode(OverBudget(number=self.number))
        if number == signal.SIGALRM:
            return encode(Delayed(number=self.number))
        cause = "without an answer" if number is None else f"by {signal.Signals(number).name}"
        reason = f"ends the process that compiles it ({cause}). Make it smaller."
        return encode(Refused(number=self.number, reason=reason, is_lasting=number in _OWN_FAULTS))

    def kill(self) -> None:
        """End it, wherever it is."""
        os.kill(self._process_id, signal.SIGKILL)
        self._wait()

    def _wait(self) -> int:
        os.close(self.pipe)
        return os.waitpid(self._process_id, 0)[1]


def _compile_and_exit(compiler: Compiler, asked: Compile, pipe: int, parent_id: int) -> NoReturn:
    """What a child does."""
    code = 1
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        # The one that was to end it may have ended before.
        if os.getppid() == parent_id:
            signal.setitimer(signal.ITIMER_PROF, asked.budget_s)
            signal.setitimer(signal.ITIMER_REAL, asked.budget_s * _MAX_WAIT_RATIO)
            _bound_memory()
            answer = encode(_outcome(compiler, asked))
            with open(pipe, "wb") as file:
                file.write(answer)
            code = 0
    finally:
        os._exit(code)


def _outcome(compiler: Compiler, asked: Compile) -> Outcome:
    try:
        return Compiled(number=asked.number, content=compiler.compile(asked.grammar))
    except BadRequest as error:
        return Refused(number=asked.number, reason=f"{error}.")


def _bound_memory() -> None:
    with open("/proc/self/statm") as file:
        num_pages = int(file.read().split()[0])
    most = num_pages * resource.getpagesize() + _MAX_MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


class _Children:
    """Owns: the children that compile. Whoever asks bounds how many there are."""

    def __init__(self, compiler: Compiler, write: _Write) -> None:
        self._compiler = compiler
        self._write = write
        self._news = selectors.DefaultSelector()
        self._by_number: dict[int, _Child] = {}

    def serve(self, questions: io.FileIO) -> None:
        """Compile until the questions end, and end with what is compiled then."""
        self._news.register(questions, selectors.EVENT_READ)
        is_open = True
        while is_open:
            for key, _ in self._news.select():
                if key.fileobj is questions:
                    is_open = self._take(questions)
                elif key.data in self._by_number:
                    self._read(self._by_number[key.data])
        for number in list(self._by_number):
            self._remove(number).kill()

    def _take(self, questions: io.FileIO) -> bool:
        """Take a question; False: they have ended."""
        body = _frame(questions)
        if body is None:
            return False
        asked = msgspec.msgpack.decode(body, type=Question)
        match asked:
            case Compile():
                child = self._by_number[asked.number] = _Child(self._compiler, asked)
                self._news.register(child.pipe, selectors.EVENT_READ, asked.number)
            case Stop():
                # It may have been answered before.
                if asked.number in self._by_number:
                    self._remove(asked.number).kill()
            case _:
                assert_never(asked)
        return True

    def _read(self, child: _Child) -> None:
        if not child.read():
            self._write(self._remove(child.number).outcome())

    def _remove(self, number: int) -> _Child:
        child = self._by_number.pop(number)
        self._news.unregister(child.pipe)
        return child


def _frame(file: io.FileIO) -> bytes | None:
    """The next frame; None: there is none any more."""
    head = _exactly(file, LENGTH_BYTES)
    return None if head is None else _exactly(file, int.from_bytes(head, "little"))


def _exactly(file: io.FileIO, num_bytes: int) -> bytes | None:
    read = bytearray()
    while len(read) < num_bytes:
        part = file.read(num_bytes - len(read))
        if not part:
            return None
        read += part
    return bytes(read)
