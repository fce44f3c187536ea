import io
from collections.abc import AsyncIterator
from typing import Any, cast

from rich.console import Console

from raydix.ids import RequestId
from raydix.runtime.api.client import AsyncLLM
from raydix.runtime.api.outputs import CompletionOutput, RequestMetrics, RequestOutput
from raydix.runtime.api.sampling_params import SamplingParams
from raydix.runtime.cli.bench import Workload, run_bench

PAGE_SIZE = 4
WORKLOAD = Workload(
    num_conversations=3,
    num_turns=3,
    max_concurrent=2,
    prompt_tokens=32,
    turn_tokens=8,
    output_tokens=4,
)


class FakeEngine:
    """Answers at once, and caches in pages of `PAGE_SIZE` what it has seen under a salt."""

    def __init__(self) -> None:
        self.num_requests = 0
        self._seen: set[tuple[str | None, tuple[int, ...]]] = set()

    async def generate(
        self, prompt: dict[str, list[int]], params: SamplingParams, *, cache_salt: str | None
    ) -> AsyncIterator[RequestOutput]:
        self.num_requests += 1
        token_ids = prompt["prompt_token_ids"]
        pages = [
            (cache_salt, tuple(token_ids[:end]))
            for end in range(PAGE_SIZE, len(token_ids), PAGE_SIZE)
        ]
        num_cached = PAGE_SIZE * sum(page in self._seen for page in pages)
        self._seen.update(pages)

        sources = {"l1": num_cached, "computed:not_found": len(token_ids) - num_cached}
        for count in range(1, (params.max_tokens or 1) + 1):
            yield RequestOutput(
                request_id=RequestId(str(self.num_requests)),
                prompt=None,
                prompt_token_ids=token_ids,
                outputs=[CompletionOutput(token_ids=list(range(1, count + 1)))],
                finished=count == params.max_tokens,
                metrics=RequestMetrics(cached_tokens_by_source=sources),
            )


async def run(engine: FakeEngine) -> dict[str, Any]:
    return await run_bench(cast(AsyncLLM, engine), WORKLOAD, Console(file=io.StringIO()))


async def test_every_turn_but_the_first_is_measured_cold_and_warm() -> None:
    engine = FakeEngine()
    value = (await run(engine))["value"]
    assert value["warm"]["num_requests"] == value["cold"]["num_requests"] == 6
    assert engine.num_requests == 9 + 6


async def test_cold_prompts_are_the_warm_ones_without_reuse() -> None:
    value = (await run(FakeEngine()))["value"]
    cold, warm = value["cold"]["tokens_by_source"], value["warm"]["tokens_by_source"]
    assert sum(cold.values()) == sum(warm.values())
    assert cold["l1"] == 0
    assert warm["l1"] > warm["computed:not_found"]


async def test_a_second_run_finds_nothing_of_the_first() -> None:
    engine = FakeEngine()
    first = (await run(engine))["value"]["warm"]["tokens_by_source"]
    second = (await run(engine))["value"]["warm"]["tokens_by_source"]
    assert first == second
