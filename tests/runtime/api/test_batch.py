import asyncio
from collections.abc import AsyncGenerator

import pytest

from raydix.runtime.api.batch import MAX_IN_FLIGHT, answer_batch
from raydix.runtime.api.outputs import CompletionOutput, RequestMetrics, RequestOutput


@pytest.mark.parametrize(
    ("num_samples", "expected"), [(1, MAX_IN_FLIGHT), (64, MAX_IN_FLIGHT // 64), (1000, 1)]
)
async def test_samples_count_for_what_is_in_flight(num_samples: int, expected: int) -> None:
    num_open = most_open = 0

    async def open_stream(index: int) -> AsyncGenerator[RequestOutput, None]:
        nonlocal num_open, most_open
        num_open += 1
        most_open = max(most_open, num_open)
        await asyncio.sleep(0)
        num_open -= 1
        yield RequestOutput(
            request_id=str(index),
            prompt=None,
            prompt_token_ids=[],
            outputs=[CompletionOutput(finish_reason="length")],
            finished=True,
            metrics=RequestMetrics(),
        )

    outputs = await answer_batch(open_stream, 300, lambda _: None, num_samples)
    assert [each.request_id for each in outputs] == [str(i) for i in range(300)]
    assert most_open == expected
