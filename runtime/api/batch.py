"""A batch of prompts: a bounded window of them runs, and each has its own fate."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TypeVar

from raydix.errors import BatchFailed, Cancelled, EngineDead, Overloaded, RaydixError
from raydix.runtime.api.outputs import RequestOutput

T = TypeVar("T")

MAX_IN_FLIGHT = 256
"""The most requests of one batch at the engine at a time: enough to fill its batches, and too few
to meet `Overloaded`.
"""


Open = Callable[[int], AsyncGenerator[RequestOutput, None]]
"""Opens the request for the prompt at a position; yields its final output alone."""


async def answer_batch(
    open_stream: Open,
    num_prompts: int,
    on_output: Callable[[RequestOutput], None],
    num_samples: int = 1,
) -> list[RequestOutput]:
    """Finished outputs in the order of the prompts; `on_output` has each as soon as it is there.

    num_samples: of a prompt, at most; each is a request to the engine. Raises what `results_of`
    does.
    """

    async def answer(index: int) -> RequestOutput:
        output = await _answer_one(open_stream, index)
        on_output(output)
        return output

    return await results_of(answer, num_prompts, max(1, MAX_IN_FLIGHT // num_samples))


async def results_of(
    ask: Callable[[int], Awaitable[T]], num_prompts: int, num_at_once: int
) -> list[T]:
    """What `ask` says of each position, a bounded number at a time.

    Raises BatchFailed once all others are answered if prompts have failed; of a single prompt its
    own error; EngineDead and Cancelled at once, as they concern all.
    """
    results: dict[int, T] = {}
    errors: dict[int, RaydixError] = {}

    async def keep(index: int) -> None:
        try:
            results[index] = await ask(index)
        except (EngineDead, Cancelled):
            raise
        except RaydixError as error:
            errors[index] = error

    await _in_window(keep, num_prompts, num_at_once)
    if errors and num_prompts == 1:
        raise errors[0]
    if errors:
        raise BatchFailed(errors, [results.get(index) for index in range(num_prompts)])
    return [results[index] for index in range(num_prompts)]


async def _in_window(work: Callable[[int], Awaitable[None]], number: int, num_at_once: int) -> None:
    """Do `work` for every index, a bounded number at a time. The first error ends all."""
    # All workers share one iterator, so that each index is taken once.
    remaining = iter(range(number))

    async def take() -> None:
        for index in remaining:
            await work(index)

    workers = [asyncio.create_task(take()) for _ in range(min(num_at_once, number))]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)


async def _answer_one(open_stream: Open, index: int) -> RequestOutput:
    while True:
        try:
            async with contextlib.aclosing(open_stream(index)) as outputs:
                return await anext(outputs)
        except Overloaded as error:
            # Others fill the engine. Nothing of this request has run: it can be sent again.
            await asyncio.sleep(error.retry_after_s)
