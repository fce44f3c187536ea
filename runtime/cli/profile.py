"""`raydix profile`: how long a running engine takes, as `raydix simulate` wants to know it."""

import asyncio
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer

from raydix.errors import BadRequest
from raydix.runtime.cli.engine_access import Where
from raydix.runtime.cli.listen_options import SecretFile
from raydix.runtime.cli.options import Address, Connect
from raydix.runtime.cli.output import require_writable, written_as
from raydix.runtime.cli.profile_probe import MeasuredEngine, Probe, decodes_of
from raydix.runtime.foresight.simulator.fitting import (
    DecodeTime,
    LoadTime,
    PromptTime,
    fit_loads,
    fit_messages,
    fit_steps,
)
from raydix.runtime.foresight.simulator.profile import CopyTimes, Profile
from raydix.runtime.scheduler.phase import Phase

_PROMPT_TOKENS = (64, 256, 512, 1024, 2048, 4096, 8192)
_BESIDE_TOKENS = (64, 256, 512, 1024, 2048)
"""The sizes of prompts that are computed while another request decodes."""
_BEHIND_TOKENS = (64, 512)
"""The sizes of those that follow what is cached."""
_BESIDE = 8
"""The number of prompts, one after the other, while the other request decodes."""
_BESIDE_DECODES = 128
_CONTEXTS = (64, 2048)
"""The tokens before those that are decoded."""
_STREAMS = (1, 8, 32)
_LOADED_TOKENS = (1024, 1024, 1024, 4096, 4096, 8192, 8192)
"""The sizes of prompts that are loaded. What the first one takes does not count."""
_LEAST_LOADS = 3
_MOST_SMALLER = 16
"""Where L1 is small these prompts are smaller, by this at most."""
_TOLD_TOKENS = 1000
"""The size of the prompt whose time is told to people."""
_DECODES = 64
_REPEATS = 3
_USUAL_BYTES_PER_S = 20e9
_MOST_FILLED_TOKENS = 2_000_000
"""An L1 that holds more is not filled in order that something has to be loaded."""

Out = Annotated[Path, typer.Option(help="The file that the profile is written to.")]
ProfileName = Annotated[str, typer.Option("--name", help="What the profile is called.")]


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
    require_writable("--out", out)
    found = asyncio.run(_measure(Where(connect, address, secret_file), name))
    with written_as("--out", out):
        out.write_text(found.model_dump_json(indent=2) + "\n", encoding="utf-8")
    step = found.step
    print(
        f"{out}: a step in which one request decodes takes "
        f"{1e3 * (step.fixed_s + step.decode_row_s):.2f} ms, one with a new prompt of "
        f"{_TOLD_TOKENS:,} tokens {1e3 * step.new_prompt_s(_TOLD_TOKENS):.2f} ms; "
        f"{found.measured_on}"
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
    """Measure steps by their device times, loads by those of prompts that have left L1.

    Raises BadRequest for an engine that is in use, or whose context is too short.
    """
    sizes = [size for size in _PROMPT_TOKENS if size + _DECODES < max_tokens]
    if len(sizes) < 4:
        raise BadRequest(
            f"the engine's context is {max_tokens} tokens; expected more than "
            f"{_PROMPT_TOKENS[3] + _DECODES}, as prompts of several sizes are measured."
        )
    stats = await engine.stats()
    figures = stats["scheduler"]
    if figures["phase"] != Phase.AWAKE.value:
        raise BadRequest(
            f"the engine is {figures['phase']}; expected one that is awake, as all requests would "
            "wait. Wake it with `raydix wake NAME`."
        )
    if figures["num_requests_running"] or figures["num_requests_waiting"]:
        raise BadRequest("the engine is in use; expected one that serves nobody else. Try again.")

    probe = Probe(engine, vocab_size)
    # The first step of each shape may compile.
    for size in sizes:
        await probe.run([probe.new_prompt(size)])
    asked = [probe.new_prompt(size) for size in sizes * _REPEATS]
    new = [await probe.run([prompt]) for prompt in asked]
    beside = await _beside_decodes(probe, sizes, asked[-1])
    room_tokens = _room_tokens(stats)
    decodes = await _decodes(probe, room_tokens, max_tokens)
    loads = []
    if 0 < room_tokens <= _MOST_FILLED_TOKENS:
        loads = await _loads(probe, room_tokens, sizes[-1])

    loaded, told = _load_times(loads)
    messages = fit_messages([each.first_token for each in new])
    return Profile(
        name=name,
        measured_on=f"{len(new)} prompts, {len(decodes)} batches; {told}",
        step=fit_steps([each.prompt for each in new], decodes, beside),
        load=loaded,
        backup=CopyTimes(bytes_per_s=loaded.bytes_per_s),
        link_s=messages.link_s,
        client_s=messages.client_s,
        client_token_s=messages.client_token_s,
    )


async def _beside_decodes(
    probe: Probe, sizes: Sequence[int], cached: list[int]
) -> list[PromptTime]:
    """Prompts that a device computes which is never idle, as its host is a step ahead."""
    other = probe.new_prompt(_CONTEXTS[0])
    await probe.run([other])
    runs = [await probe.run([other], 1 + _BESIDE_DECODES) for _ in range(_REPEATS)]
    alone_s = median(each.device_s for each in runs)
    step_s = alone_s / (1 + _BESIDE_DECODES)

    forms: list[tuple[list[int], int]] = [([], num) for num in _BESIDE_TOKENS if num in sizes]
    for begin in (cached[: len(cached) // 2], cached[: len(cached) - _BEHIND_TOKENS[-1]]):
        forms += [(begin, num) for num in _BEHIND_TOKENS]
    found = []
    for begin, num in forms:
        prompts = [begin + probe.new_prompt(num) for _ in range(_BESIDE)]
        both = await probe.run_beside(other, 1 + _BESIDE_DECODES, prompts)
        num_computed = both.num_computed // _BESIDE
        # Each of them makes one of the decodes' steps longer.
        seconds = step_s + max(0.0, both.device_s - alone_s) / _BESIDE
        found.append(PromptTime(num_computed, seconds, len(begin) + num - num_computed))
    return found


async def _decodes(probe: Probe, room_tokens: int, max_tokens: int) -> list[DecodeTime]:
    """Batches that decode behind prompts that are cached; behind long ones if L1 has room."""
    found = []
    for context, num in product(_CONTEXTS, _STREAMS):
        length = context + _DECODES + 1
        if length >= max_tokens or (context > _CONTEXTS[0] and 2 * num * length > room_tokens):
            continue
        prompts = [probe.new_prompt(context) for _ in range(num)]
        await probe.run(prompts)
        short = await probe.run(prompts)
        long = await probe.run(prompts, 1 + _DECODES)
        found.append(decodes_of(short, long, num, context, _DECODES))
    return found


async def _loads(probe: Probe, room_tokens: int, longest: int) -> list[LoadTime]:
    """Let prompts be evicted from L1, and ask for them again: L2 may have them."""
    marked = [probe.new_prompt(size) for size in _loaded_sizes(room_tokens, longest)]
    for prompt in marked:
        await probe.run([prompt])

    asked_before = probe.num_tokens
    while marked and probe.num_tokens - asked_before <= room_tokens:
        await probe.run([probe.new_prompt(min(longest, room_tokens // 2))])
    loads = [(await probe.run([prompt])).load for prompt in marked]
    # The first one wakes threads and kernels that have loaded nothing yet.
    return loads[1:]


def _loaded_sizes(room_tokens: int, longest: int) -> list[int]:
    """The sizes of prompts that are loaded: a third of L1 at most, and so small that some fit."""
    smaller = 1
    while smaller < _MOST_SMALLER and _LEAST_LOADS * _LOADED_TOKENS[0] / smaller > room_tokens / 3:
        smaller *= 2
    sizes: list[int] = []
    for size in (each // smaller for each in _LOADED_TOKENS):
        if size <= longest and sum(sizes) + size <= room_tokens / 3:
            sizes.append(size)
    return sizes


def _room_tokens(stats: Mapping[str, Any]) -> int:
    """The tokens that L1 holds; 0 without L2, which alone tells those of a page."""
    page_tokens = int(stats.get("host", {}).get("page_tokens", 0))
    return page_tokens * int(stats["scheduler"]["l1_total_pages"])


def _load_times(loads: Sequence[LoadTime]) -> tuple[CopyTimes, str]:
    """The times of loads; usual ones if there were none."""
    found = fit_loads(loads)
    if found is None:
        usual = CopyTimes(bytes_per_s=_USUAL_BYTES_PER_S)
        return usual, "no load was seen, so 20 GB/s are assumed"
    rate = found.bytes_per_s / 1e9
    return found, f"{sum(each.num_bytes for each in loads):,} bytes loaded at {rate:.1f} GB/s"
