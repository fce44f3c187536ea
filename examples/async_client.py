"""Stream several answers at once from an engine that runs already.

python -m raydix serve CONFIG &
python examples/async_client.py [NAME]
"""

import asyncio
import sys
import time

from raydix import AsyncLLM, Overloaded, SamplingParams
from raydix.runtime.api.sampling_params import OutputKind

PROMPTS = ["Once upon a time", "In the beginning", "It was a dark night"]


async def stream(engine: AsyncLLM, prompt: str) -> None:
    """Print pieces of text as they come. Leaving the loop early would abort the request."""
    params = SamplingParams(
        temperature=0.8, max_tokens=64, stop=["\n\n"], output_kind=OutputKind.DELTA
    )
    started = time.monotonic()

    try:
        async for output in engine.generate(prompt, params, deadline_s=60.0):
            print(f"{time.monotonic() - started:6.3f} s  {prompt!r}: {output.outputs[0].text!r}")
            if output.finished:
                print(
                    f"{output.num_cached_tokens} prompt tokens were cached: "
                    f"{output.metrics.cached_tokens_by_source}"
                )
    except Overloaded as error:
        print(f"{prompt!r}: {error} Try again in {error.retry_after_s} s.")


async def main(name: str = "raydix") -> None:
    """Connect by name, stream all prompts, and leave the engine running."""
    async with await AsyncLLM.connect(name) as engine:
        await asyncio.gather(*(stream(engine, prompt) for prompt in PROMPTS))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
