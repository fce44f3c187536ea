import asyncio
import gc

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from raydix.runtime.server.ebb import Ebb
from tests.runtime.server.served_engine import Server


def test_an_ebb_is_over_once_many_have_closed_and_no_more_do() -> None:
    ebb = Ebb()
    counts = [0, 5000, 17_000, 16_500, 9000, 20, 20, 20, 900, 20, 20, 1100, 60, 60]
    over = [number for number, each in enumerate(counts) if ebb.is_over(each)]
    assert over == [6, 13]


async def test_an_answered_request_leaves_nothing_for_the_collector(server: Server) -> None:
    def num_cycles() -> int:
        return sum(isinstance(each, RequestResponseCycle) for each in gc.get_objects())

    gc.collect()
    gc.disable()
    try:
        for _ in range(5):
            async with server.http() as http:
                await http.get("/health")
                await http.post("/v1/completions", json={"prompt": "a", "max_tokens": 1})
        # The loop has yet to hear that the last ones have closed.
        async with asyncio.timeout(20):
            while num_cycles() > 1:
                await asyncio.sleep(0.01)
    finally:
        gc.enable()
