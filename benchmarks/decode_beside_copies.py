"""Measure how much decoding slows down beside loads and backups, as a client sees it.

    python -m benchmarks.decode_beside_copies

On Ray, a batch generates while one more request again and again brings a prefix of 1 GiB from L2,
or leaves 512 MiB of new pages to be backed up. The time between two tokens counts as beside copies
if a copy was under way from the first of them to the second; no other request's step lies between
them then. Its own time is that of the same batch without copies, before and after.

Backups follow the long step that computed their pages. Behind it tokens reach the client closer
together than they are computed, so that their figure may lie below 1: it bounds, and no more.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.engine.engines import (
    DENSE_L16,
    DENSE_TINY,
    Answer,
    Options,
    Prompts,
    ask,
    ask_batch,
    dummy_config,
    engine_name,
    engine_sections,
    expect_sources,
    parse_options,
    settle,
)
from benchmarks.engine.watched_copies import WatchedCopies, Window
from benchmarks.model.model_shapes import ModelConfig
from benchmarks.records.command_line import run
from benchmarks.records.record import Figure
from raydix.runtime.actors.bootstrap.launch import start_engine
from raydix.runtime.api.client import AsyncLLM

NAME = engine_name("decode-beside-copies")
ANY_SLOWDOWN = 1e6
"""New pages are computed in one step: those of a part are backed up between two tokens."""
MAX_RATIOS = {"loads": 1.05, "backups": 1.10}
_POLL_S = 0.002


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The sizes of the batch and of what is copied."""

    batch: int = 32
    prompt_tokens: int = 512
    output_tokens: int = 800
    prefix_tokens: int = 16_384
    num_prefixes: int = 9
    """More than L1 holds: each has left it when its turn comes again."""
    chunk_tokens: int = 8192
    l1_tokens: int = 131_072
    l2_bytes: int = 24 << 30
    copy_delay_s: float = 0.0
    """How long a page takes to copy on the cpu."""
    warm_up_loads: int = 5
    """How many loads the Scheduler learns from when a request may join a step."""

    def min_pages(self, page_size: int) -> int:
        """The fewest pages of copies that count: the batch backs up a page per request at most."""
        return min(self.batch + 1, self.chunk_tokens // page_size)

    def sections(self, page_size: int) -> dict[str, Any]:
        """The engine's configuration but for its model."""
        sections = engine_sections(
            max_model_len=2 * self.prefix_tokens,
            page_size=page_size,
            l1_pages=self.l1_tokens // page_size,
            l2_bytes=self.l2_bytes,
            chunk_tokens=self.chunk_tokens,
            max_running_requests=self.batch + 1,
        )
        sections["cache"]["l1"]["copy_delay_s"] = self.copy_delay_s
        sections["scheduler"]["max_decode_slowdown"] = ANY_SLOWDOWN
        return sections


FULL = Sizes()
TINY = Sizes(
    batch=2,
    prompt_tokens=32,
    output_tokens=64,
    prefix_tokens=256,
    num_prefixes=12,
    chunk_tokens=128,
    l1_tokens=2048,
    l2_bytes=16 << 20,
    copy_delay_s=0.01,
    warm_up_loads=40,
)


Disturb = Callable[[], Awaitable[None]]


@asynccontextmanager
async def watched_engine(
    options: Options, model: ModelConfig, sections: Mapping[str, Any], min_pages: int
) -> AsyncIterator[tuple[AsyncLLM, WatchedCopies]]:
    """An engine of actors, and what its GPU actor copies `min_pages` and more of at a time."""
    with TemporaryDirectory(prefix="raydix-benchmark-") as folder:
        watched = WatchedCopies(Path(folder) / "copies.jsonl", min_pages)
        async with dummy_config(options, model, sections) as config:
            handle = await asyncio.to_thread(
                start_engine, config, NAME, None, None, watched.build_model
            )
            try:
                async with await AsyncLLM.connect(NAME) as llm:
                    yield llm, watched
            finally:
                await handle.shutdown()


class Bench:
    """One engine in which a batch decodes."""

    def __init__(self, llm: AsyncLLM, watched: WatchedCopies, sizes: Sizes) -> None:
        self._llm = llm
        self._watched = watched
        self._sizes = sizes
        self._prompts = Prompts(256)
        self._prefixes = deque(
            self._prompts.draw(sizes.prefix_tokens) for _ in range(sizes.num_prefixes)
        )

    async def warm_up(self) -> None:
        """Bring the prefixes into L2, and load some."""
        for prefix in self._prefixes:
            await ask(self._llm.generate, [*prefix, 0], 1)
            await settle(self._llm.stats)
        for _ in range(self._sizes.warm_up_loads):
            await self.load()
        await self.decode(None)

    async def decode(self, disturb: Disturb | None) -> Answer:
        """The stream that is watched, of a batch beside which `disturb` runs over and over."""
        sizes = self._sizes
        self._watched.begin()
        prompts = [self._prompts.draw(sizes.prompt_tokens) for _ in range(sizes.batch)]
        decoding = asyncio.create_task(ask_batch(self._llm.generate, prompts, sizes.output_tokens))
        while disturb is not None and not decoding.done():
            await disturb()
        answers = await decoding
        await settle(self._llm.stats)

        first_s = max(answer.first_s for answer in answers)
        return replace(
            answers[0], first_s=first_s, ended_s=min(answer.ended_s for answer in answers)
        )

    async def load(self) -> None:
        """Bring the prefix that was used the longest time ago from L2."""
        prefix = self._prefixes[0]
        self._prefixes.rotate(-1)
        answer = await ask(self._llm.generate, prefix + self._prompts.draw(1), 1)
        expect_sources(answer, l2=self._sizes.prefix_tokens)

    async def back_up(self) -> None:
        """Compute new pages in one step, and wait until they are in L2."""
        num_before = len(self.windows(is_load=False))
        await ask(self._llm.generate, self._prompts.draw(self._sizes.chunk_tokens), 1)
        while len(self.windows(is_load=False)) == num_before:
            await asyncio.sleep(_POLL_S)

    def windows(self, *, is_load: bool) -> list[Window]:
        """The windows of the large copies since the batch began."""
        return [each for each in self._watched.windows() if each.is_load is is_load]


def steady_intervals_s(answer: Answer) -> NDArray[np.float64]:
    """Times between tokens; NaN where the batch was not yet or no longer complete."""
    arrivals_s = np.array(answer.arrivals_s)
    is_steady = (arrivals_s[:-1] >= answer.first_s) & (arrivals_s[1:] <= answer.ended_s)
    return np.where(is_steady, np.diff(arrivals_s), np.nan)


def beside(answer: Answer, windows: Sequence[Window]) -> NDArray[np.int64]:
    """Indices of the steady intervals that lie within a window."""
    arrivals_s = np.array(answer.arrivals_s)
    is_within = np.zeros(len(arrivals_s) - 1, dtype=np.bool_)
    for window in windows:
        is_within |= (arrivals_s[:-1] >= window.began_s) & (arrivals_s[1:] <= window.ended_s)
    return np.flatnonzero(is_within & ~np.isnan(steady_intervals_s(answer)))


async def measure(
    options: Options, page_size: int, sizes: Sizes, model: ModelConfig
) -> list[Figure]:
    """Measure both directions at one page size."""
    sections, min_pages = sizes.sections(page_size), sizes.min_pages(page_size)
    async with watched_engine(options, model, sections, min_pages) as (llm, watched):
        bench = Bench(llm, watched, sizes)
        await bench.warm_up()

        # The batch's own time, before and after, so that a drift of the machine counts for neither.
        alone_s = [steady_intervals_s(await bench.decode(None))]
        disturbed = {}
        for name, is_load, disturb in (
            ("loads", True, bench.load),
            ("backups", False, bench.back_up),
        ):
            answer = await bench.decode(disturb)
            disturbed[name] = answer, bench.windows(is_load=is_load)
        alone_s.append(steady_intervals_s(await bench.decode(None)))

    own_ms = 1e3 * float(np.nanmean(np.concatenate(alone_s)))
    return [
        figure
        for name, (answer, windows) in disturbed.items()
        for figure in compare(
            name,
            page_size,
            answer,
            windows,
            own_ms=own_ms,
            max_ratio=options.bar(MAX_RATIOS[name]),
        )
    ]


def compare(
    name: str,
    page_size: int,
    answer: Answer,
    windows: Sequence[Window],
    *,
    own_ms: float,
    max_ratio: float | None,
) -> list[Figure]:
    """Figures of the tokens that came beside copies, against the batch's own time."""
    indices = beside(answer, windows)
    if not len(indices):
        raise RuntimeError(
            f"no two tokens came beside one of {len(windows)} {name}; measure longer outputs"
        )

    tpot_ms = 1e3 * float(steady_intervals_s(answer)[indices].mean())
    return [
        Figure(
            name=f"TPOT beside {name}, page {page_size}, {len(indices)} tokens",
            value=tpot_ms,
            unit="ms",
            baseline=own_ms,
            baseline_name="without copies",
        ),
        Figure(
            name=f"TPOT beside {name} over its own, page {page_size}",
            value=tpot_ms / own_ms,
            unit="1",
            max_value=max_ratio,
        ),
        Figure(
            name=f"time of one of the {name}, page {page_size}",
            value=1e3 * float(np.median([each.ended_s - each.began_s for each in windows])),
            unit="ms",
        ),
    ]


def main(options: Options) -> int:
    """Measure and report."""
    sizes, model = (TINY, DENSE_TINY) if options.is_tiny else (FULL, DENSE_L16)
    figures = []
    for page_size in (64, 16):
        figures += asyncio.run(measure(options, page_size, sizes, model))
    return options.report("decode_beside_copies", {"model": "dense_l16", **asdict(sizes)}, figures)


if __name__ == "__main__":
    run(lambda: main(parse_options(__doc__)))
