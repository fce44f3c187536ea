"""The CPU time that Schedulers take for requests that are pulled, found, and computed.

Two engines of actors on Ray, with a small model on the cpu. In each round one of them is asked for
contexts that the other one's L2 holds, for the same ones once they are in its own, and for new
ones. The time is that of both Schedulers' loops: that of the holder, whose L2 the pages leave,
too.
"""

from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks.engine.engine_pairs import (
    PULLING,
    Asker,
    sections_of,
    two_engines,
    until_known,
)
from benchmarks.engine.engines import DENSE_TINY, Options, ask, expect_sources, settle
from benchmarks.engine.workloads import Contexts
from benchmarks.records.record import Figure
from raydix.runtime.api.client import AsyncLLM

MAX_OF_COMPUTED = 1.05
"""The bar: a node that cannot pull what it lacks computes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """The requests of one round, of each kind, and how many rounds there are.

    The contexts of a round do not fit L1 together, so that each leaves it before it comes again.
    """

    num_contexts: int = 12
    context_tokens: int = 2048
    rounds: int = 7

    @property
    def sizes(self) -> Contexts:
        """The load of a pair of engines, whose L2 holds all rounds."""
        return Contexts(
            context_tokens=self.context_tokens,
            l1_tokens=self.context_tokens * (self.num_contexts // 2),
            l2_bytes=512 << 20,
            chunk_tokens=self.context_tokens // 2,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuRound:
    """The CPU milliseconds of both Schedulers' loops per request of a kind."""

    pulled: float
    found: float
    """The time for those that the own L2 holds."""
    computed: float


async def measure_cpu(requests: Requests) -> list[CpuRound]:
    """Ask in rounds; each context must come from where it is meant to."""
    sizes = requests.sizes
    asker = Asker(sizes, int(DENSE_TINY["vocab_size"]))
    options = Options(device="cpu", is_tiny=True)
    rounds = []
    async with two_engines(options, DENSE_TINY, sections_of(sizes, 1, PULLING)) as engines:
        holder, puller = engines
        await asker.warm(*engines)
        for _ in range(requests.rounds):
            contexts = asker.draw(requests.num_contexts)
            await _ask_all(contexts, engines, holder)
            await until_known(puller, holder)
            length = sizes.context_tokens
            pulled = await _ask_all(contexts, engines, puller, peer=length)
            found = await _ask_all(contexts, engines, puller, l2=length)
            new = asker.draw(requests.num_contexts)
            computed = await _ask_all(new, engines, puller)
            rounds.append(CpuRound(pulled=pulled, found=found, computed=computed))
    return rounds


async def _ask_all(
    contexts: list[list[int]],
    engines: tuple[AsyncLLM, AsyncLLM],
    asked: AsyncLLM,
    **cached_tokens: int,
) -> float:
    """Ask one after the other; the CPU milliseconds per request of both engines' Schedulers."""
    before_s = await _cpu_s(engines)
    answers = [await ask(asked.generate, context, 1) for context in contexts]
    # Nobody polls while they are asked: what the Scheduler then answers is no request's.
    await settle(asked.stats)
    taken_s = await _cpu_s(engines) - before_s
    for answer in answers:
        expect_sources(answer, **cached_tokens)
    return 1e3 * taken_s / len(contexts)


async def _cpu_s(engines: tuple[AsyncLLM, AsyncLLM]) -> float:
    figures: list[dict[str, Any]] = [(await engine.stats())["scheduler"] for engine in engines]
    return sum(float(each["scheduler_cpu_s"]) for each in figures)


def cpu_figures(rounds: list[CpuRound]) -> list[Figure]:
    """Medians of all rounds, and of each round's ratios."""
    times = {
        name: median(getattr(each, name) for each in rounds)
        for name in ("pulled", "found", "computed")
    }
    return [
        Figure(
            name="Schedulers' CPU, pulled of computed",
            value=median(each.pulled / each.computed for each in rounds),
            unit="1",
            max_value=MAX_OF_COMPUTED,
        ),
        Figure(
            name="Schedulers' CPU, pulled of found in L2",
            value=median(each.pulled / each.found for each in rounds),
            unit="1",
        ),
        *(
            Figure(name=f"Schedulers' CPU, {name}", value=value, unit="ms/request")
            for name, value in times.items()
        ),
    ]
