"""Run by `test_ray_pages.py`: an engine with Ray's dashboard, and a Serve application beside it.

Arguments: checkpoint, name, and the ports of the dashboard, of metrics and of Serve.
"""

import asyncio
import sys

from ray import serve

from raydix.runtime.api.client import AsyncLLM

_CACHE = {"l1": {"num_pages": 64}, "l2": {"bytes_per_node": "4MiB"}}


@serve.deployment(name="front", ray_actor_options={"num_cpus": 0})
class Front:
    """Something that Serve's page can list."""

    async def __call__(self) -> str:
        """Answer at all."""
        return "here"


async def main() -> None:
    """Say `up` and stay until the standard input ends."""
    model, name = sys.argv[1:3]
    dashboard_port, metrics_port, serve_port = map(int, sys.argv[3:6])
    ray_ports = {"dashboard_port": dashboard_port, "metrics_port": metrics_port}
    async with await AsyncLLM.start(model, name=name, cache=_CACHE, ray=ray_ports) as engine:
        async for _ in engine.generate(list(range(40)), {"max_tokens": 4}):
            pass

        def fill() -> None:
            serve.start(http_options={"host": "127.0.0.1", "port": serve_port})
            serve.run(Front.bind(), name="an-application")

        await asyncio.to_thread(fill)
        print("up", flush=True)
        await asyncio.to_thread(sys.stdin.read)
        await asyncio.to_thread(serve.shutdown)


asyncio.run(main())
