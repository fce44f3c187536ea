"""`raydix profile`: how long a running engine takes, as `raydix simulate` wants to know it."""

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Protocol

import typer

from raydix.errors import BadRequest
from raydix.runtime.api.outputs import RequestOutput
from raydix.runtime.api.sampling_params import SamplingParams
from raydix.runtime.cli.engine_access import Where
from raydix.runtime.cli.listen_options import SecretFile
from raydix.runtime.cli.options import Address, Connect
from raydix.runtime.foresight.simulator.fitting import DecodeTime, PromptTime, fit_steps
from raydix.runtime.foresight.simulator.profile import CopyTimes, Profile

_PROMPT_TOKENS = (64, 256, 1024, 4096, 8192)
_STREAMS = (1, 8, 32)
_DECODES = 32
_REPEATS = 3
_USUAL_BYTES_PER_S = 20e9
_SETTLE_S = 0.05

Out = Annotated[Path, typer.Option(help="The file that the profile is written to.")]
ProfileName = Annotated[str, typer.Option("--name", help="What the profile is called.")]


class MeasuredEngine(Protocol):
    """What is asked of an engine."""

    def generate(
        self, prompt: Any, sampling_params: SamplingParams
    ) -> AsyncGenerator[RequestOutput, None]:
        """Generate for one prompt."""

    async def stats(self) -> Mapping[str, Any]:
        """Figures of every actor."""


def profile(
    out: Out,
    connect: Connect = "raydix",
    name: ProfileName = "measured",
    address: Address = None,
    secret_file: SecretFile = None,
) -> None:
    """Measure a running engine that nobody else uses, for `raydix simulate --profile`.

    Sends prompts of random tokens, which leave the caches fuller than they were.
    """
    found = asyncio.run(_measure(Where(connect, address, secret_file), name))
    out.write_text(found.model_dump_json(indent=2) + "\n", encoding="utf-8")
    step = found.step
    print(
        f"{out}: a step takes {1e3 * step.fixed_s:.2f} ms, 1,000 tokens of a prompt "
        f"{1e6 * step.prompt_token_s:.2f} ms more; {found.measured_on}"
    )


async def _measure(where: Where, name: str) -> Profile:
    async with await where.reach() as engine:
        limits = await engine.limits()
        return await measure_profile(
            engine, name, vocab_size=limits.vocab_size, max_tokens=limits.max_model_len
        )


async def measure_profile(
    engine: MeasuredEngine, name: str, *, vocab_size: int, max_tokens: int
) -> Profile:
    """Measure steps by their device times; copies by those that the engine has made so far.

    Raises BadRequest for an engine that is in use, or whose context is too short.
    """
    sizes = [size for size in _PROMPT_TOKENS if size + _DECODES < max_tokens]
    if len(sizes) < 3:
        raise BadRequest(
            f"the engine's context is {max_tokens} tokens; expected more than "
            f"{_PROMPT_TOKENS[2] + _DECODES}, as prompts of several sizes are measured."
        )
    figures = await _scheduler(engine)
    if figures["num_requests_running"] or figures["num_requests_waiting"]:
        raise BadRequest("the engine is in use; expected one that serves nobody else. Try again.")

    draw = random.Random(0)
    probe = _Probe(engine, draw, vocab_size)
    # The first step of each shape may compile.
    for size in sizes:
        await probe.run(1, size, 1)
    prompts, others_s = [], []
    for size in sizes * _REPEATS:
        seconds, wall_s = await probe.run(1, size, 1)
        prompts.append(PromptTime(size, seconds))
        others_s.append(max(0.0, wall_s - seconds))

    decodes = []
    for num in _STREAMS:
        short_s, _ = await probe.run(num, sizes[0], 1)
        long_s, _ = await probe.run(num, sizes[0], 1 + _DECODES)
        decodes.append(DecodeTime(num, max(1e-6, long_s - short_s) / _DECODES))

    loads, told = _load_times(await engine.stats())
    other_s = median(others_s)
    return Profile(
        name=name,
        measured_on=f"{len(prompts)} prompts, {len(decodes)} batches; {told}",
        step=fit_steps(prompts, decodes),
        load=loads,
        backup=CopyTimes(bytes_per_s=loads.bytes_per_s),
        # Of what a first token takes besides its step half is the client's, both ways.
        client_s=other_s / 4,
        link_s=other_s / 4,
    )


class _Probe:
    """Sends requests, and reads what the device took for them."""

    def __init__(self, engine: MeasuredEngine, draw: random.Random, vocab_size: int) -> None:
        self._engine, self._draw, self._vocab_size = engine, draw, vocab_size

    async def run(self, num: int, num_tokens: int, max_tokens: int) -> tuple[float, float]:
        """The device's and the client's seconds for so many new prompts at once."""
        before_s = await self._device_s()
        began_s = time.monotonic()
        await asyncio.gather(*(self._ask(num_tokens, max_tokens) for _ in range(num)))
        wall_s = time.monotonic() - began_s
        # A step that was sent ahead may end after its request.
        await asyncio.sleep(_SETTLE_S)
        return await self._device_s() - before_s, wall_s

    async def _device_s(self) -> float:
        # Not there before the first step.
        return float((await _scheduler(self._engine)).get("compute_s", 0.0))

    async def _ask(self, num_tokens: int, max_tokens: int) -> None:
        prompt = [self._draw.randrange(self._vocab_size) for _ in range(num_tokens)]
        params = SamplingParams(
            temperature=0.0, max_tokens=max_tokens, ignore_eos=True, detokenize=False
        )
        async for _ in self._engine.generate(prompt, params):
            pass


async def _scheduler(engine: MeasuredEngine) -> Mapping[str, Any]:
    figures: Mapping[str, Any] = (await engine.stats())["scheduler"]
    return figures


def _load_times(stats: Mapping[str, Any]) -> tuple[CopyTimes, str]:
    """The speed of loads so far; a usual one for an engine that has made none."""
    scheduler, host = stats["scheduler"], stats.get("host", {})
    num_pages, ready = scheduler["loaded_pages"], host.get("pages_ready", 0)
    if not (num_pages and ready and scheduler["copy_s"] > 0):
        usual = CopyTimes(bytes_per_s=_USUAL_BYTES_PER_S)
        return usual, "no load was seen, so 20 GB/s are assumed"
    page_bytes = host["ready_bytes"] / ready
    rate = num_pages * page_bytes / scheduler["copy_s"]
    return CopyTimes(bytes_per_s=rate), f"{num_pages} pages loaded at {rate / 1e9:.1f} GB/s"
