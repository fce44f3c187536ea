"""Use a running engine from async Ray actors: each copy of the handle connects by name.

python -m raydix serve CONFIG &
python examples/ray_actor.py [NAME]
"""

import asyncio
import sys

import ray

from raydix import AsyncLLM, SamplingParams


class Summarizer:
    """An application's actor; many calls run at once on its event loop."""

    def __init__(self, engine: AsyncLLM) -> None:
        self.engine = engine

    async def summarize(self, text: str) -> str:
        """One short completion. Cancelling the Ray task aborts the request."""
        params = SamplingParams(temperature=0.0, max_tokens=32)
        summary = ""
        async for output in self.engine.generate(f"{text}\n\nIn short:", params):
            summary = output.outputs[0].text
        return summary


async def main(name: str = "raydix") -> None:
    """Two actors share one engine, and with it the cache."""
    engine = await AsyncLLM.connect(name)
    actor_class = ray.remote(num_cpus=0)(Summarizer)
    actors = [actor_class.remote(engine) for _ in range(2)]
    text = "A radix tree stores strings that share prefixes; each edge carries a run of symbols."
    print(await asyncio.gather(*(actor.summarize.remote(text) for actor in actors)))
    await engine.disconnect()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
