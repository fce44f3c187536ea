"""What the commands do with an engine: start or reach one, generate, and look into its cache."""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from raydix.errors import BadRequest
from raydix.runtime.api.client import AsyncLLM
from raydix.runtime.api.llm import prefetch_all
from raydix.runtime.api.outputs import RequestOutput
from raydix.runtime.api.prompts import Prompt
from raydix.runtime.api.sampling_params import SamplingParams
from raydix.runtime.cli.stop_signal import until_stopped
from raydix.runtime.config.engine import EngineConfig

_MAX_CONCURRENT = 64


@asynccontextmanager
async def open_engine(
    config: EngineConfig | None, connect: str | None, address: str | None
) -> AsyncIterator[AsyncLLM]:
    """Start an engine, which is shut down afterwards, or reach the one named `connect`, which goes
    on.
    """
    if connect is not None:
        engine = await AsyncLLM.connect(connect, address=address)
    else:
        # Not the default name: whoever connects to that one means an engine that stays up.
        engine = await AsyncLLM.start(
            config, name=f"private-{uuid.uuid4().hex[:8]}", address=address
        )
    try:
        yield engine
    finally:
        if connect is None:
            await engine.shutdown()
        else:
            await engine.disconnect()


async def serve_until_stopped(
    config: EngineConfig, name: str, address: str | None, console: Console
) -> None:
    """Keep an engine up until SIGINT or SIGTERM, then stop it cleanly."""
    engine = await AsyncLLM.start(config, name=name, address=address)
    try:
        console.print(
            f"Engine {name} is ready: raydix generate --connect {name} --prompt ...   Ctrl-C "
            f"stops it."
        )
        await until_stopped()
    finally:
        await engine.shutdown()


def read_prompts(prompts: Sequence[str], path: Path | None) -> list[Prompt]:
    """The given prompts, then those of the file: one per line, as JSON if its name ends in .jsonl."""
    found: list[Prompt] = list(prompts)
    if path is not None:
        found += _read_prompt_file(path, "--prompts-file")
    if not found:
        raise BadRequest("There is no prompt. Give --prompt TEXT or --prompts-file FILE.")
    return found


def _read_prompt_file(path: Path, option: str) -> list[Prompt]:
    try:
        lines = [line for line in path.read_text().splitlines() if line.strip()]
        return [json.loads(line) for line in lines] if path.suffix == ".jsonl" else list(lines)
    except (OSError, ValueError) as error:
        raise BadRequest(f"{option} {path}: {error}") from None


async def generate_all(
    engine: AsyncLLM, prompts: Sequence[Prompt], params: SamplingParams, *, as_chat: bool
) -> AsyncIterator[dict[str, Any]]:
    """Run all prompts, a bounded number at a time, and yield the answers in the order of the
    prompts.
    """
    admitted = asyncio.Semaphore(_MAX_CONCURRENT)

    async def answer(prompt: Prompt) -> dict[str, Any]:
        async with admitted:
            if as_chat:
                prompt = await engine.apply_chat_template([{"role": "user", "content": prompt}])
            last = None
            async for output in engine.generate(prompt, params):
                last = output
        if last is None:
            raise BadRequest("the stream ended without an output")
        return _answer(last)

    tasks = [asyncio.create_task(answer(prompt)) for prompt in prompts]
    try:
        for task in tasks:
            yield await task
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def cache_stats(name: str, address: str | None) -> dict[str, Any]:
    """Counters and gauges of a running engine."""
    async with open_engine(None, name, address) as engine:
        return await engine.stats()


async def cache_flush(name: str, address: str | None, l3: bool) -> dict[str, Any]:
    """Empty L1 and L2 of a running engine, and its objects in L3 if asked; what was dropped."""
    async with open_engine(None, name, address) as engine:
        return await engine.flush(l3=l3)


async def cache_attach(
    name: str, address: str | None, section: Mapping[str, Any]
) -> dict[str, Any]:
    """Give a running engine another L3 backend; the names of the new and the former one."""
    async with open_engine(None, name, address) as engine:
        return await engine.attach_storage(section)


async def cache_detach(name: str, address: str | None) -> dict[str, Any]:
    """Take a running engine's L3 away; the name of its backend."""
    async with open_engine(None, name, address) as engine:
        return await engine.detach_storage()


async def cache_prefetch(name: str, address: str | None, path: Path) -> list[dict[str, int]]:
    """Bring to L2 of a running engine what its L3 has of a file's prompts; per prompt its tokens by
    source.

    Raises BadRequest for a file without prompts, and if the engine has no L3 to fetch from.
    """
    prompts = _read_prompt_file(path, "--file")
    if not prompts:
        raise BadRequest(f"--file {path} holds no prompt; expected one per line.")
    async with open_engine(None, name, address) as engine:
        host = (await engine.stats()).get("host")
        if host is not None and host["l3_breaker"] == "none":
            raise BadRequest(
                f"Engine {name} has no L3 to fetch from. Set cache.l3, or use raydix cache attach."
            )
        return await prefetch_all(engine, prompts, None)


async def cache_explain(name: str, address: str | None, request_id: str) -> dict[str, Any]:
    """Where a recent request's prompt came from, by token range. Raises BadRequest for an unknown
    request.
    """
    async with open_engine(None, name, address) as engine:
        explanation: dict[str, Any] | None = await engine.explain(request_id)
    if explanation is None:
        raise BadRequest(f"Request {request_id} is not among the last 1,024 of engine {name}.")
    return explanation


def _answer(output: RequestOutput) -> dict[str, Any]:
    completion = output.outputs[0]
    return {
        "request_id": output.request_id,
        "text": completion.text,
        "token_ids": list(completion.token_ids),
        "finish_reason": completion.finish_reason,
        "num_prompt_tokens": len(output.prompt_token_ids),
        "cached_tokens_by_source": output.metrics.cached_tokens_by_source,
    }
