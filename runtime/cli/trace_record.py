"""`raydix trace record`: follow a running engine, and write what it was asked as a trace."""

import asyncio
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from raydix.errors import BadRequest, RaydixError
from raydix.runtime.cli.engine_access import Where
from raydix.runtime.cli.listen_options import SecretFile
from raydix.runtime.cli.options import Address, Connect, bytes_of
from raydix.runtime.cli.output import require_writable, written_as
from raydix.runtime.cli.stop_signal import until_stopped
from raydix.runtime.foresight.recorded import RecordedTrace
from raydix.runtime.foresight.traces import write_rows

if TYPE_CHECKING:
    from raydix.runtime.api.recording import Recording

_POLL_S = 0.25

Out = Annotated[Path, typer.Option(help="The file; a name that ends with .gz is compressed.")]
ForSeconds = Annotated[
    float | None, typer.Option("--for", metavar="S", help="End by itself after so many seconds.")
]
MaxRequests = Annotated[
    int | None, typer.Option("--requests", min=1, help="End by itself after so many requests.")
]
MaxSize = Annotated[
    str, typer.Option(help="End by itself once the recording takes so much memory.")
]
BlockTokens = Annotated[
    int | None,
    typer.Option(min=1, help="Tokens in a block: a multiple of a page's, which is the default."),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bounds:
    """When a recording ends by itself."""

    seconds: float | None
    max_requests: int | None
    max_bytes: int


def record(
    out: Out,
    *,
    connect: Connect = "raydix",
    for_s: ForSeconds = None,
    requests: MaxRequests = None,
    max_size: MaxSize = "256MiB",
    block_tokens: BlockTokens = None,
    address: Address = None,
    secret_file: SecretFile = None,
) -> None:
    """Write what a running engine is asked as a trace, until Ctrl-C or a bound ends it.

    It has lengths, times, sessions, pauses, priorities and hints. Of contents it tells which blocks
    are equal, and nothing else: they are hashed with a salt that never leaves the engine.
    """
    if for_s is not None and not 0 < for_s < math.inf:
        raise BadRequest(f"--for is {for_s}; expected a number of seconds above 0.")
    max_bytes = bytes_of("--max-size", max_size)
    if not max_bytes:
        raise BadRequest(f"--max-size is {max_size}; expected a size above 0, such as 256MiB.")
    bounds = _Bounds(seconds=for_s, max_requests=requests, max_bytes=max_bytes)
    require_writable("--out", out)
    failure, trace = asyncio.run(
        _record(Where(connect, address, secret_file), block_tokens, bounds)
    )
    num_written = trace.num_requests if requests is None else min(requests, trace.num_requests)
    # As it is, even if the engine has ended meanwhile.
    if num_written:
        with written_as("--out", out):
            write_rows(out, trace.rows(requests))
        print(f"{out}: {num_written:,} requests, blocks of {trace.block_tokens} tokens")
    else:
        print(f"The engine was asked nothing that is recorded, so {out} was not written.")
    if trace.num_unserved:
        print(f"{trace.num_unserved:,} requests ended before they had their turn; left out")
    if trace.num_dropped:
        print(f"{trace.num_dropped:,} requests and hints were lost: more came than was taken")
    if failure is not None:
        raise failure


async def _record(
    where: Where, block_tokens: int | None, bounds: _Bounds
) -> tuple[RaydixError | None, RecordedTrace]:
    """What was recorded, and what has ended it before its time."""
    async with where.handle() as engine:
        recording = await engine.begin_recording(block_tokens)
        trace = RecordedTrace(recording.block_tokens)
        print(f"Recording engine {where.connect}; Ctrl-C ends it.", file=sys.stderr, flush=True)
        try:
            await _follow(recording, trace, bounds)
            trace.add(await recording.end())
        except RaydixError as error:
            return error, trace
        return None, trace


async def _follow(recording: "Recording", trace: RecordedTrace, bounds: _Bounds) -> None:
    """Take what is recorded until a bound is reached, or a signal comes."""
    stopping = asyncio.create_task(until_stopped())
    began_s = asyncio.get_running_loop().time()
    try:
        # What is under way when a signal comes is taken all the same.
        while (left_s := _left_s(trace, bounds, began_s)) > 0 and not stopping.done():
            await asyncio.wait({stopping}, timeout=min(_POLL_S, left_s))
            trace.add(await recording.take())
    finally:
        stopping.cancel()
        await asyncio.gather(stopping, return_exceptions=True)


def _left_s(trace: RecordedTrace, bounds: _Bounds, began_s: float) -> float:
    """How much longer it may take; 0: it has reached a bound."""
    if trace.num_bytes >= bounds.max_bytes:
        return 0.0
    if bounds.max_requests is not None and trace.num_requests >= bounds.max_requests:
        return 0.0
    if bounds.seconds is None:
        return math.inf
    return began_s + bounds.seconds - asyncio.get_running_loop().time()
