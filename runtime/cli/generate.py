"""`raydix generate`: answers to prompts."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO, TypedDict

import typer

from raydix.errors import Cancelled, EngineDead, RaydixError
from raydix.runtime.api.outputs import RequestOutput
from raydix.runtime.api.prompts import Prompt, is_chat, is_text
from raydix.runtime.api.sampling_params import OutputKind, SamplingParams
from raydix.runtime.api.tokenizer import require_tokenizer
from raydix.runtime.cli.answer_printer import JsonPrinter, Printer, TextPrinter
from raydix.runtime.cli.engine_access import open_engine
from raydix.runtime.cli.listen_options import SecretFile
from raydix.runtime.cli.options import (
    PROMPT_FILE_HELP,
    Address,
    AsJson,
    CacheSalt,
    OptionalConnect,
    Settings,
    Source,
    config_unless_connected,
)
from raydix.runtime.cli.output import standard_output
from raydix.runtime.cli.prompt_file import read_prompts

if TYPE_CHECKING:
    from raydix.runtime.api.client import AsyncLLM

_MAX_CONCURRENT = 64


class Options(TypedDict):
    """What a request says besides its prompt and parameters."""

    routing_key: str | None
    cache_salt: str | None


@dataclass(frozen=True, slots=True)
class Asking:
    """How an engine is asked for each prompt."""

    engine: "AsyncLLM"
    params: SamplingParams
    as_chat: bool
    routing_key: str | None = None
    cache_salt: str | None = field(default=None, repr=False)

    def stream(self, prompt: Prompt, kind: OutputKind) -> AsyncGenerator[RequestOutput, None]:
        """The outputs of one prompt."""
        params = replace(self.params, output_kind=kind)
        if self.as_chat and not is_chat(prompt):
            messages = [{"role": "user", "content": prompt}]
            return self.engine.chat(messages, params, **self._options())
        return self.engine.generate(prompt, params, **self._options())

    def _options(self) -> "Options":
        return {"routing_key": self.routing_key, "cache_salt": self.cache_salt}


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
    stream: Annotated[
        bool, typer.Option("--stream", help="Print as it comes, one prompt after the other.")
    ] = False,
    routing_key: Annotated[
        str | None,
        typer.Option(help="Requests of one key run together, if scheduler.policy is routing_key."),
    ] = None,
    cache_salt: CacheSalt = None,
    settings: Settings = None,
    connect: OptionalConnect = None,
    address: Address = None,
    secret_file: SecretFile = None,
    as_json: AsJson = False,
) -> None:
    """Generate from prompts, with an engine of its own or a running one."""
    config = config_unless_connected(source, settings, connect)
    prompts = read_prompts(prompt or [], prompts_file)
    if config is not None and (chat or any(is_text(each) for each in prompts)):
        # An engine that starts for minutes could only say the same.
        require_tokenizer(config.model.path)
    params = SamplingParams(
        temperature=temperature, max_tokens=max_tokens, seed=seed, ignore_eos=ignore_eos
    )

    async def run(stdout: TextIO) -> None:
        async with await open_engine(config, connect, address, secret_file) as engine:
            client = await engine.connected()
            as_text = TextPrinter(
                stdout, has_tokenizer=client.has_tokenizer, num_prompts=len(prompts)
            )
            show = JsonPrinter(stdout) if as_json else as_text
            asking = Asking(
                engine, params, as_chat=chat, routing_key=routing_key, cache_salt=cache_salt
            )
            show_all = stream_all if stream else print_all
            await show_all(asking, prompts, show, client.limits.max_model_len)

    with standard_output(as_json) as (_, stdout):
        asyncio.run(run(stdout))


async def print_all(
    asking: Asking, prompts: Sequence[Prompt], show: Printer, max_model_len: int
) -> None:
    """Print whole answers, in the order of the prompts.

    A prompt that fails does not keep the others from being answered; the command then ends with 1.
    """
    num_failed = index = 0
    async for answer in generate_all(asking, prompts):
        if isinstance(answer, RaydixError):
            num_failed += 1
            show.failure(index, answer)
        else:
            show.answer(answer)
            tell_if_cut(answer, asking.params.max_tokens, max_model_len)
        index += 1
    end_by(num_failed, len(prompts))


async def stream_all(
    asking: Asking, prompts: Sequence[Prompt], show: Printer, max_model_len: int
) -> None:
    """Print answers as they come, one prompt after the other; see `print_all`."""
    num_failed = 0
    for index, prompt in enumerate(prompts):
        try:
            async with contextlib.aclosing(asking.stream(prompt, OutputKind.DELTA)) as outputs:
                async for output in outputs:
                    show.piece(output)
                    tell_if_cut(output, asking.params.max_tokens, max_model_len)
        except (EngineDead, Cancelled):
            raise
        except RaydixError as error:
            num_failed += 1
            show.failure(index, error)
    end_by(num_failed, len(prompts))


def end_by(num_failed: int, num_prompts: int) -> None:
    """End the command with 1 if prompts have failed; why, was told of each."""
    if not num_failed:
        return
    if num_prompts > 1:
        print(f"{num_failed} of {num_prompts} prompts failed.", file=sys.stderr)
    raise typer.Exit(1)


def tell_if_cut(output: RequestOutput, max_tokens: int | None, max_model_len: int) -> None:
    """Tell on standard error that the context was full before all tokens that were asked for."""
    num_left = max_model_len - len(output.prompt_token_ids)
    if (
        max_tokens is not None
        and max_tokens > num_left
        and output.outputs[0].finish_reason == "length"
    ):
        print(
            f"--max-tokens is {max_tokens}, but the context of {max_model_len} tokens leaves "
            f"{num_left} after this prompt: the answer ends there.",
            file=sys.stderr,
        )


async def generate_all(
    asking: Asking, prompts: Sequence[Prompt]
) -> AsyncIterator[RequestOutput | RaydixError]:
    """Run all prompts, a bounded number at a time; answers come in the order of the prompts.

    Raises EngineDead and Cancelled, which concern all.
    """
    admitted = asyncio.Semaphore(_MAX_CONCURRENT)

    async def answer(prompt: Prompt) -> RequestOutput | RaydixError:
        async with admitted:
            try:
                async with contextlib.aclosing(asking.stream(prompt, OutputKind.FINAL)) as outputs:
                    return await anext(outputs)
            except (EngineDead, Cancelled):
                raise
            except RaydixError as error:
                return error

    tasks = [asyncio.create_task(answer(prompt)) for prompt in prompts]
    try:
        for task in tasks:
            yield await task
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
