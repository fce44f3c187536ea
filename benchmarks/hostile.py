"""Measure what hostile grammars of one tenant cost the requests of others.

    python -m benchmarks.hostile

Streams of a model that sleeps decode without an end. Beside them 200 schemas and expressions of ten
families are asked for, some at once, which real processes compile or refuse: rounds with them, each
until all are answered, and quiet ones of some seconds alternate. What a token takes in a round with
them is divided by what it takes in the quiet rounds before and after, and the median of these
quotients has a bar. So has what the engine's process works for a token, which says what hostile
grammars take of it where cores are not scarce, and a busy machine changes less.
"""

import asyncio
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median

from benchmarks.records.command_line import add_keep, count, make_parser, positive, run
from benchmarks.records.record import Figure, report
from benchmarks.structured import write_tokenizer
from raydix.errors import RaydixError
from raydix.runtime.api.sampling_params import SamplingParams
from raydix.runtime.config.loading import load_config
from raydix.runtime.messages.grammar import Grammar, GrammarKind
from raydix.runtime.testing.engine import InProcessEngine, in_process_engine
from raydix.runtime.testing.sleeping_runner import VOCAB_SIZE, build_sleeping_model
from tests.hostile_grammars import NUM_GROUPS, hostile_grammars

MAX_SLOWDOWN = 1.05
PROMPT_TOKENS = 64
STREAM_TOKENS = 4000
MIN_ROUND_S, MAX_QUIET_S = 2.0, 5.0
NAMES = {
    GrammarKind.JSON_SCHEMA: "json",
    GrammarKind.REGEX: "regex",
    GrammarKind.EBNF: "grammar",
    GrammarKind.STRUCTURAL_TAG: "structural_tag",
}
DIGITS = SamplingParams(max_tokens=1, structured_outputs={"regex": "[0-9]+"})


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment: how late it is, what the engine's process has worked, tokens of all streams."""

    at_s: float
    cpu_s: float
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Round:
    """What a token takes, in time for its stream, and in work of the engine's process."""

    tpot_s: float
    cpu_s: float


class Streams:
    """Owns: requests without a grammar, one after another in each place."""

    def __init__(self, engine: InProcessEngine, num_streams: int) -> None:
        self._engine = engine
        self._tasks = [asyncio.create_task(self._decode(number)) for number in range(num_streams)]
        self._num_tokens = 0

    async def stop(self) -> None:
        """End all of them."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def round(self, begin: Mark, end: Mark) -> Round:
        """What a token has taken between two marks."""
        num_tokens = end.num_tokens - begin.num_tokens
        return Round(
            tpot_s=(end.at_s - begin.at_s) * len(self._tasks) / num_tokens,
            cpu_s=(end.cpu_s - begin.cpu_s) / num_tokens,
        )

    def mark(self) -> Mark:
        """How far they are."""
        return Mark(time.monotonic(), time.process_time(), self._num_tokens)

    async def _decode(self, number: int) -> None:
        params = SamplingParams(temperature=0.0, max_tokens=STREAM_TOKENS, ignore_eos=True)
        prompt = [1 + number, *range(2, PROMPT_TOKENS + 1)]
        while True:
            async for _ in self._engine.client.generate(prompt, params):
                self._num_tokens += 1


async def ask(engine: InProcessEngine, grammar: Grammar) -> bool:
    """Ask for an output of a grammar; whether it was refused."""
    try:
        asked = {NAMES[grammar.kind]: grammar.text}
        params = SamplingParams(max_tokens=1, structured_outputs=asked)
        async for _ in engine.client.generate([1, 2, 3], params):
            pass
    except RaydixError:
        return True
    return False


async def measure(
    num_streams: int, step_s: float, groups: Sequence[int], num_at_once: int
) -> tuple[list[Round], list[Round], int]:
    """All rounds, quiet ones and others, and how many grammars are refused."""
    with tempfile.TemporaryDirectory() as folder:
        write_tokenizer(Path(folder), VOCAB_SIZE)
        config = load_config(
            {
                "model": {"path": folder},
                "cache": {"page_size": 64, "l1": {"num_pages": 8192}, "l2": None},
                "scheduler": {"max_running_requests": num_streams + num_at_once},
            }
        )
        build_model = partial(build_sleeping_model, step_s=step_s)
        async with in_process_engine(config, build_model) as engine:
            # The first grammar starts the process, which takes seconds.
            async for _ in engine.client.generate([1, 2], DIGITS):
                pass
            streams = Streams(engine, num_streams)
            try:
                return await _play(engine, streams, groups, num_at_once)
            finally:
                await streams.stop()


async def _play(
    engine: InProcessEngine, streams: Streams, groups: Sequence[int], num_at_once: int
) -> tuple[list[Round], list[Round], int]:
    quiet, hostile, num_refused = [], [], 0
    await asyncio.sleep(MIN_ROUND_S)
    length_s = MIN_ROUND_S
    for group in groups:
        grammars = hostile_grammars(group)
        for first in range(0, len(grammars), num_at_once):
            begin = streams.mark()
            await asyncio.sleep(length_s)
            middle = streams.mark()
            asked = grammars[first : first + num_at_once]
            num_refused += sum(await asyncio.gather(*(ask(engine, each) for each in asked)))
            # What is refused at once says nothing of a time per token.
            await asyncio.sleep(max(0.0, middle.at_s + MIN_ROUND_S - time.monotonic()))
            end = streams.mark()
            quiet.append(streams.round(begin, middle))
            hostile.append(streams.round(middle, end))
            length_s = min(MAX_QUIET_S, end.at_s - middle.at_s)
            print(f"{num_refused} refused: {hostile[-1]}, {quiet[-1]}", file=sys.stderr)
    begin = streams.mark()
    await asyncio.sleep(length_s)
    quiet.append(streams.round(begin, streams.mark()))
    return quiet, hostile, num_refused


def quotients(
    quiet: Sequence[Round], hostile: Sequence[Round], value: Callable[[Round], float]
) -> list[float]:
    """What each round takes, over the mean of the quiet ones before and after it."""
    return [
        2 * value(own) / (value(before) + value(after))
        for own, (before, after) in zip(hostile, pairwise(quiet), strict=True)
    ]


def main() -> int:
    """Measure and report; 1 above the bar."""
    parser = make_parser(__doc__)
    parser.add_argument("--streams", type=count, default=16)
    parser.add_argument("--step-ms", type=positive, default=5.0)
    parser.add_argument("--groups", type=count, default=NUM_GROUPS, help="of 20 grammars each")
    parser.add_argument("--at-once", type=count, default=10)
    add_keep(parser)
    arguments = parser.parse_args()
    groups = range(min(arguments.groups, NUM_GROUPS))

    quiet, hostile, num_refused = asyncio.run(
        measure(arguments.streams, arguments.step_ms / 1e3, groups, arguments.at_once)
    )

    figures = [
        Figure(
            name="TPOT beside hostile grammars over that without",
            value=median(quotients(quiet, hostile, lambda each: each.tpot_s)),
            unit="1",
            max_value=MAX_SLOWDOWN,
        ),
        Figure(
            name="CPU of the engine's process per token beside hostile grammars over that without",
            value=median(quotients(quiet, hostile, lambda each: each.cpu_s)),
            unit="1",
            max_value=MAX_SLOWDOWN,
        ),
        Figure(
            name="TPOT beside hostile grammars",
            value=median(each.tpot_s for each in hostile) * 1e3,
            unit="ms",
            baseline=median(each.tpot_s for each in quiet) * 1e3,
            baseline_name="without",
        ),
        Figure(name="refused", value=float(num_refused), unit="grammars"),
    ]
    config = {
        "streams": arguments.streams,
        "step_ms": arguments.step_ms,
        "grammars": sum(len(hostile_grammars(group)) for group in groups),
        "at_once": arguments.at_once,
    }
    return report("hostile", config, figures, keep_in=arguments.keep)


if __name__ == "__main__":
    run(main)
