"""What actors, links and the Scheduler cost per step, around a model that only sleeps.

python -m benchmarks.step_overhead --ranks 2 --requests 64 --step-ms 5   # wall time over the step
python -m benchmarks.step_overhead --ranks 2 --step-ms 0                 # the Scheduler's CPU time
"""

import asyncio
import os
import statistics
import time
from dataclasses import dataclass
from functools import partial

from benchmarks.records.command_line import add_keep, count, make_parser, quantity, run
from benchmarks.records.record import Figure, report
from raydix.ids import AskingId, RequestId
from raydix.runtime.actors.bootstrap.engine_handle import EngineHandle
from raydix.runtime.actors.bootstrap.launch import start_engine
from raydix.runtime.actors.links.link import Link
from raydix.runtime.actors.links.socket_dialer import connect
from raydix.runtime.config.loading import load_config
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.client import SubmitRequest, TokenFrame
from raydix.runtime.messages.hello import Hello, Role
from raydix.runtime.messages.plan import DeviceSampling
from raydix.runtime.testing.sleeping_runner import VOCAB_SIZE, build_sleeping_model

SHORT_TOKENS, LONG_TOKENS = 64, 8192
"""Lengths of the prompts."""
OUTPUT_TOKENS = 400
RAMP_TOKENS = 20
"""Tokens at either end of a stream that do not count: the batch is not complete there."""
MAX_WALL_RATIO = 1.10
MAX_CPU_MS = 0.5
MAX_CPU_MS_PER_REQUEST = 0.008
PAGE_SIZE = 64


@dataclass(frozen=True)
class Measurement:
    """What one number of concurrent requests costs."""

    wall_ms: float
    """Per step in the steady state, median over the streams."""
    cpu_ms: float
    """The CPU time of the Scheduler's loop per step of every rank, with what submissions and
    endings take.
    """


async def measure(handle: EngineHandle, num_requests: int, num_tokens: int) -> Measurement:
    """Stream `num_requests` at once to their end."""
    hello = Hello(role=Role.CLIENT, name="benchmark", incarnation=0, pid=os.getpid())
    link = await connect(handle.record.client_address, hello, handle.record.secret)

    before = (await handle.call("stats"))["scheduler"]
    for i in range(num_requests):
        link.send(_request(AskingId(i), f"{num_requests}-{i}", num_tokens))
    wall_ms = await _read_streams(link, num_requests)
    after = (await handle.call("stats"))["scheduler"]
    link.close()

    # A plan may be repeated: steps are counted by the tokens that each request has of them.
    num_rounds = (after["generation_tokens"] - before["generation_tokens"]) / num_requests
    return Measurement(
        wall_ms, 1e3 * (after["scheduler_cpu_s"] - before["scheduler_cpu_s"]) / num_rounds
    )


def _request(asking: AskingId, request_id: str, num_tokens: int) -> SubmitRequest:
    tokens = int32_array(
        (asking * 977 + num_tokens + position * 31) % VOCAB_SIZE for position in range(num_tokens)
    )
    return SubmitRequest(
        asking=asking,
        request_id=RequestId(request_id),
        token_ids=tokens,
        sampling=DeviceSampling(seed=asking),
        max_tokens=OUTPUT_TOKENS,
    )


async def _read_streams(link: Link, num_requests: int) -> float:
    """Milliseconds between two tokens of a stream, without its ends."""
    num_tokens: dict[AskingId, int] = {}
    began_s: dict[AskingId, tuple[float, int]] = {}
    intervals_ms: list[float] = []
    num_finished = 0
    while num_finished < num_requests:
        frame = await link.receive()
        assert isinstance(frame, TokenFrame)
        now_s = time.monotonic()
        news = [(asking, 1) for asking in frame.askings]

        for delta in frame.deltas:
            if delta.failure is not None:
                raise RuntimeError(delta.failure.message)
            news.append((delta.asking, len(delta.token_ids)))
            num_finished += delta.finished is not None

        for request, num_new in news:
            count = num_tokens[request] = num_tokens.get(request, 0) + num_new
            if count >= RAMP_TOKENS and request not in began_s:
                began_s[request] = (now_s, count)
            if count >= OUTPUT_TOKENS - RAMP_TOKENS > count - num_new:
                start_s, start_count = began_s[request]
                intervals_ms.append(1e3 * (now_s - start_s) / (count - start_count))
    return statistics.median(intervals_ms)


async def measure_all(num_ranks: int, request_counts: list[int], step_ms: float) -> list[Figure]:
    """One engine, one measurement per number of requests after a warm-up."""
    config = load_config(
        {
            "model": {"path": "none"},
            "parallel": {"dp": num_ranks},
            "cache": {
                "page_size": PAGE_SIZE,
                "l1": {"num_pages": 128 * (LONG_TOKENS + 2 * OUTPUT_TOKENS) // PAGE_SIZE},
                "l2": None,
            },
            "scheduler": {"max_running_requests": 128},
        }
    )
    build_model = partial(build_sleeping_model, step_s=step_ms / 1e3)
    handle = await asyncio.to_thread(start_engine, config, "step-overhead", None, None, build_model)

    figures: list[Figure] = []
    try:
        await measure(handle, num_ranks, SHORT_TOKENS)
        for num_tokens, suffix in ((SHORT_TOKENS, ""), (LONG_TOKENS, "_8k_prompts")):
            for num_requests in request_counts:
                measured = await measure(handle, num_requests, num_tokens)
                figures += _figures(f"{num_requests}{suffix}", measured, num_requests, step_ms)
    finally:
        await handle.shutdown()
    return figures


def _figures(name: str, measured: Measurement, num_requests: int, step_ms: float) -> list[Figure]:
    max_wall_ms = MAX_WALL_RATIO * step_ms if step_ms else None
    max_cpu_ms = None if step_ms else MAX_CPU_MS + MAX_CPU_MS_PER_REQUEST * num_requests
    return [
        Figure(name=f"wall_{name}", value=measured.wall_ms, unit="ms/step", max_value=max_wall_ms),
        Figure(name=f"cpu_{name}", value=measured.cpu_ms, unit="ms/step", max_value=max_cpu_ms),
    ]


def main() -> int:
    """Measure, print the record, and return 1 below a bar."""
    parser = make_parser(__doc__)
    parser.add_argument("--ranks", type=count, default=2)
    parser.add_argument(
        "--requests", type=count, nargs="+", help="default: 64, or 1 64 128 with --step-ms 0"
    )
    parser.add_argument("--step-ms", type=quantity, default=5.0)
    add_keep(parser)
    arguments = parser.parse_args()

    counts = arguments.requests or ([64] if arguments.step_ms else [1, 64, 128])
    figures = asyncio.run(measure_all(arguments.ranks, counts, arguments.step_ms))
    config = {"ranks": arguments.ranks, "requests": counts, "step_ms": arguments.step_ms}
    name = "step_overhead" if arguments.step_ms else "scheduler_cpu"
    return report(name, config, figures, keep_in=arguments.keep)


if __name__ == "__main__":
    run(main)
