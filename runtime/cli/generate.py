"""`raydix generate`: answers to prompts."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer
from rich.console import Console

from raydix.errors import BadRequest
from raydix.runtime.api.outputs import RequestOutput
from raydix.runtime.api.prompts import Prompt
from raydix.runtime.api.sampling_params import SamplingParams
from raydix.runtime.cli.engine_access import open_engine
from raydix.runtime.cli.listen_options import SecretFile
from raydix.runtime.cli.options import (
    PROMPT_FILE_HELP,
    Address,
    AsJson,
    OptionalConnect,
    Settings,
    Source,
    config_unless_connected,
)
from raydix.runtime.cli.output import print_json, standard_output
from raydix.runtime.cli.prompt_file import read_prompts

if TYPE_CHECKING:
    from raydix.runtime.api.client import AsyncLLM

_MAX_CONCURRENT = 64


def generate(
    source: Source = None,
    *,
    prompt: Annotated[list[str] | None, typer.Option(help="A prompt. Repeatable.")] = None,
    prompts_file: Annotated[Path | None, typer.Option(help=PROMPT_FILE_HELP)] = None,
    max_tokens: Annotated[
        int | None, typer.Option(help="Default: the rest of the context.")
    ] = None,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    seed: Annotated[int | None, typer.Option(help="Seed of the sampling.")] = None,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Go on past the end-of-sequence token.")
    ] = False,
    chat: Annotated[
        bool, typer.Option("--chat", help="Take each prompt as a user's message.")
    ] = False,
    settings: Settings = None,
    connect: OptionalConnect = None,
    address: Address = None,
    secret_file: SecretFile = None,
    as_json: AsJson = False,
) -> None:
    """Generate from prompts, with an engine of its own or a running one."""
    config = config_unless_connected(source, settings, connect)
    prompts = read_prompts(prompt or [], prompts_file)
    params = SamplingParams(
        temperature=temperature, max_tokens=max_tokens, seed=seed, ignore_eos=ignore_eos
    )

    async def run(out: Console, stdout: TextIO) -> None:
        async with await open_engine(config, connect, address, secret_file) as engine:
            async for answer in generate_all(engine, prompts, params, as_chat=chat):
                if as_json:
                    print_json(answer, stdout)
                else:
                    out.print(answer["text"] or answer["token_ids"], markup=False, highlight=False)

    with standard_output(as_json) as (out, stdout):
        asyncio.run(run(out, stdout))


async def generate_all(
    engine: "AsyncLLM", prompts: Sequence[Prompt], params: SamplingParams, *, as_chat: bool
) -> AsyncIterator[dict[str, Any]]:
    """Run all prompts, a bounded number at a time; answers come in the order of the prompts."""
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
        return _record_of(last)

    tasks = [asyncio.create_task(answer(prompt)) for prompt in prompts]
    try:
        for task in tasks:
            yield await task
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _record_of(output: RequestOutput) -> dict[str, Any]:
    completion = output.outputs[0]
    return {
        "request_id": output.request_id,
        "text": completion.text,
        "token_ids": list(completion.token_ids),
        "finish_reason": completion.finish_reason,
        "num_prompt_tokens": len(output.prompt_token_ids),
        "cached_tokens_by_source": output.metrics.cached_tokens_by_source,
    }
