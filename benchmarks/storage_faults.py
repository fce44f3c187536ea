"""Storage that fails in the middle of traffic: what requests notice, and when hits are back.

    python -m benchmarks.storage_faults
    python -m benchmarks.storage_faults --faults black_hole killed

An open loop of requests, most of them for documents that L3 alone can hold, goes to an engine with
L3 and, in turns, to one without. In the middle the storage breaks. The model only sleeps; all else
is real: actors, links, arena, copies. `killed` runs on Ray actors and files, `stopped` on a Redis
server, the others in one process on the fake backend.
"""

import asyncio
import random
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import numpy as np

from benchmarks.engine.engines import ask, engine_sections
from benchmarks.engine.sleeping_model import PAGE_TOKENS
from benchmarks.records.command_line import add_results, count, make_parser, run
from benchmarks.records.record import Figure, report
from benchmarks.stores.faulty_storage import FAULTS, FaultyStorage, Served, without_l3
from raydix.errors import RaydixError
from raydix.runtime.testing.sleeping_runner import VOCAB_SIZE

MAX_TTFT_RATIO = 1.15
MAX_RECOVERY_S = 30.0
RECOVERED_FRACTION = 0.9
"""The part of the former hit rate at which the last `WINDOW` answers count as recovered."""
WINDOW = 20


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The traffic, the model and the caches."""

    requests: int = 200
    requests_before_fault: int = 50
    requests_per_s: float = 15.0
    grace_s: float = 2.0
    """Requests that arrive later than this after the fault must not notice it."""
    pairs: int = 5
    documents: int = 96
    document_pages: int = 32
    new_fraction: float = 0.2
    """The part of the requests that are for a document that nobody has asked for yet."""
    question_tokens: int = 48
    output_tokens: int = 2
    chunk_tokens: int = 512
    step_s: float = 0.01
    l1_pages: int = 512
    l2_pages: int = 1024
    latency_s: float = 0.002
    """The latency of the fake backend while nothing is wrong with it."""
    max_recovery_s: float = 2 * MAX_RECOVERY_S

    def engine_sections(self, l3: dict[str, Any] | None, page_bytes: int) -> dict[str, Any]:
        """The configuration of an engine."""
        sections = engine_sections(
            max_model_len=2 * self.document_pages * PAGE_TOKENS,
            page_size=PAGE_TOKENS,
            l1_pages=self.l1_pages,
            l2_bytes=self.l2_pages * page_bytes,
            chunk_tokens=self.chunk_tokens,
        )
        sections["model"]["path"] = "none"
        sections["cache"]["l3"] = l3
        return sections


@dataclass(frozen=True)
class Arrival:
    """A request of the trace. `prompt_seed` says which document it is about."""

    at_s: float
    prompt_seed: int
    is_known: bool
    """Somebody has asked for the document before."""


@dataclass(frozen=True)
class Seen:
    """One request as its client saw it."""

    arrival: Arrival
    ttft_ms: float | None
    """The time to the first token; None: the request failed."""
    hit_fraction: float


class Traffic:
    """An endless open loop of requests, the same for the same seed and so for each engine."""

    def __init__(self, setting: Setting, seed: int) -> None:
        self._setting = setting
        self._random = random.Random(seed)
        self._num_new = 0
        self._seed = seed
        self._at_s = 0.0

    def next(self) -> Arrival:
        """The request after the one before."""
        self._at_s += self._random.expovariate(self._setting.requests_per_s)
        if self._random.random() < self._setting.new_fraction:
            self._num_new += 1
            return Arrival(self._at_s, 1_000_000 * (1 + self._seed) + self._num_new, False)
        return Arrival(self._at_s, self._random.randrange(self._setting.documents), True)


class Client:
    """Asks one engine about documents and remembers nothing."""

    def __init__(self, served: Served, setting: Setting) -> None:
        self._served = served
        self._setting = setting
        self._random = random.Random(0)
        self.errors: Counter[str] = Counter()

    def _prompt(self, seed: int) -> list[int]:
        document = np.random.default_rng(seed).integers(
            VOCAB_SIZE, size=self._setting.document_pages * PAGE_TOKENS
        )
        question = [
            self._random.randrange(VOCAB_SIZE) for _ in range(self._setting.question_tokens)
        ]
        return [*document.tolist(), *question]

    async def ask(self, arrival: Arrival) -> Seen:
        """Send one request now."""
        prompt = self._prompt(arrival.prompt_seed)
        try:
            answer = await ask(self._served.generate, prompt, self._setting.output_tokens)
        except RaydixError as error:
            self.errors[type(error).__name__] += 1
            return Seen(arrival, None, 0.0)
        num_cached = sum(answer.tokens_by_source.get(tier, 0) for tier in ("l1", "l2", "l3"))
        return Seen(
            arrival, answer.ttft_ms, num_cached / (self._setting.document_pages * PAGE_TOKENS)
        )

    async def learn_documents(self) -> None:
        """Have every document stored."""
        for document in range(self._setting.documents):
            await self.ask(Arrival(0.0, document, True))
        await self._served.settle()


async def play(
    client: Client, setting: Setting, traffic: Traffic, storage: FaultyStorage | None
) -> list[Seen]:
    """Send the trace in real time, whatever becomes of it; `storage` breaks on the way."""
    began_s = time.monotonic()
    tasks = []

    for index in range(setting.requests):
        arrival = traffic.next()
        await asyncio.sleep(began_s + arrival.at_s - time.monotonic())
        if storage is not None and index == setting.requests_before_fault:
            await storage.break_down()
        tasks.append(asyncio.create_task(client.ask(arrival)))
    return list(await asyncio.gather(*tasks))


async def measure_recovery(
    client: Client, setting: Setting, traffic: Traffic, wanted: float
) -> float:
    """Go on with the traffic; seconds until its hit rate is `wanted`, or infinity."""
    began_s = time.monotonic()
    first_s = traffic.next().at_s
    seen: list[Seen] = []
    tasks: set[asyncio.Task[None]] = set()

    async def ask_and_note(arrival: Arrival) -> None:
        answer = await client.ask(arrival)
        if arrival.is_known:
            seen.append(answer)

    recovery_s = float("inf")
    while time.monotonic() < began_s + setting.max_recovery_s:
        arrival = traffic.next()
        await asyncio.sleep(began_s + arrival.at_s - first_s - time.monotonic())
        task = asyncio.create_task(ask_and_note(arrival))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        if len(seen) >= WINDOW and hit_rate(seen[-WINDOW:]) >= wanted:
            recovery_s = time.monotonic() - began_s
            break
    await asyncio.gather(*tasks)
    return recovery_s


def hit_rate(seen: list[Seen]) -> float:
    """The part of known documents' tokens that came from a cache."""
    known = [each.hit_fraction for each in seen if each.arrival.is_known]
    return sum(known) / len(known)


@dataclass(frozen=True)
class Pair:
    """The same trace with a fault and without L3; times of requests that must not notice it."""

    faulty_ms: list[float]
    plain_ms: list[float]
    num_failed: int
    hits_before: float
    hits_during: float
    recovery_s: float

    @property
    def ratio(self) -> float:
        """The 95th percentile with the fault over that without L3."""
        return p95(self.faulty_ms) / p95(self.plain_ms)


def p95(times_ms: list[float]) -> float:
    """The 95th percentile."""
    return float(np.percentile(times_ms, 95))


def select_late(seen: list[Seen], setting: Setting) -> list[float]:
    """Times of the requests that arrived long enough after the fault."""
    fault_s = seen[setting.requests_before_fault].arrival.at_s
    late = [each.ttft_ms for each in seen if each.arrival.at_s > fault_s + setting.grace_s]
    return [ttft_ms for ttft_ms in late if ttft_ms is not None]


async def measure_pair(
    with_l3: Served, plain: Served, storage: FaultyStorage, setting: Setting, seed: int
) -> Pair:
    """One run on either engine; which goes first changes with the seed."""
    faulty, healthy = Client(with_l3, setting), Client(plain, setting)
    plain_seen: list[Seen] = []
    if seed % 2:
        plain_seen = await play(healthy, setting, Traffic(setting, seed), None)

    traffic = Traffic(setting, seed)
    seen = await play(faulty, setting, traffic, storage)
    before = seen[: setting.requests_before_fault]
    await storage.repair()
    recovery_s = await measure_recovery(
        faulty, setting, traffic, RECOVERED_FRACTION * hit_rate(before)
    )
    await with_l3.settle()

    if not seed % 2:
        plain_seen = await play(healthy, setting, Traffic(setting, seed), None)
    await plain.settle()

    return Pair(
        faulty_ms=select_late(seen, setting),
        plain_ms=select_late(plain_seen, setting),
        num_failed=sum(faulty.errors.values()),
        hits_before=hit_rate(before),
        hits_during=hit_rate(seen[setting.requests_before_fault :]),
        recovery_s=recovery_s,
    )


async def measure(fault: str, setting: Setting, *, has_bars: bool) -> list[Figure]:
    """All pairs of one fault, on two engines that live as long."""
    async with (
        FAULTS[fault](setting.engine_sections, setting.step_s, setting.latency_s) as (
            with_l3,
            storage,
        ),
        without_l3(with_l3, setting.engine_sections, setting.step_s) as plain,
    ):
        for served in (with_l3, plain):
            await Client(served, setting).learn_documents()

        pairs = []
        for seed in range(setting.pairs):
            pairs.append(await measure_pair(with_l3, plain, storage, setting, seed))
            print(f"{fault}: {describe(pairs[-1])}", file=sys.stderr)
        await with_l3.check()
        await plain.check()
    return summarise(pairs, has_bars=has_bars)


def describe(pair: Pair) -> str:
    """One line about one pair."""
    return (
        f"p95 {p95(pair.faulty_ms):.1f} ms, without L3 {p95(pair.plain_ms):.1f} ms, "
        f"ratio {pair.ratio:.3f}; hits {pair.hits_before:.2f} before, "
        f"{pair.hits_during:.2f} during, back in {pair.recovery_s:.1f} s; "
        f"{pair.num_failed} failed"
    )


def summarise(pairs: list[Pair], *, has_bars: bool) -> list[Figure]:
    """Percentiles are over the requests of all pairs."""
    faulty_ms = p95([ttft_ms for pair in pairs for ttft_ms in pair.faulty_ms])
    plain_ms = p95([ttft_ms for pair in pairs for ttft_ms in pair.plain_ms])
    bars = {"ratio": MAX_TTFT_RATIO, "recovery": MAX_RECOVERY_S} if has_bars else {}

    return [
        Figure(
            name="failed",
            value=sum(pair.num_failed for pair in pairs),
            unit="requests",
            max_value=0,
        ),
        Figure(
            name="p95 TTFT over that without L3",
            value=faulty_ms / plain_ms,
            unit="1",
            max_value=bars.get("ratio"),
        ),
        Figure(
            name="p95 TTFT",
            value=faulty_ms,
            unit="ms",
            baseline=plain_ms,
            baseline_name="without L3",
        ),
        Figure(
            name="median ratio of the pairs", value=median(pair.ratio for pair in pairs), unit="1"
        ),
        Figure(name="hit rate before", value=median(pair.hits_before for pair in pairs), unit="1"),
        Figure(name="hit rate during", value=median(pair.hits_during for pair in pairs), unit="1"),
        Figure(
            name="slowest recovery of the hit rate",
            value=max(pair.recovery_s for pair in pairs),
            unit="s",
            max_value=bars.get("recovery"),
        ),
    ]


def main() -> int:
    """Measure, print a record for each fault, and return 1 below a bar."""
    parser = make_parser(__doc__)
    parser.add_argument("--faults", nargs="+", choices=sorted(FAULTS), default=list(FAULTS))
    parser.add_argument("--pairs", type=count, default=Setting().pairs)
    add_results(parser, help="folder for the records", default=None)

    arguments = parser.parse_args()
    setting = Setting(pairs=arguments.pairs)
    statuses = []
    for fault in arguments.faults:
        figures = asyncio.run(measure(fault, setting, has_bars=True))
        statuses.append(
            report(f"storage_faults_{fault}", asdict(setting), figures, keep_in=arguments.results)
        )
    return max(statuses)


if __name__ == "__main__":
    run(main)
