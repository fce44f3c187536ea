"""Requests that end early, in every state, leave nothing behind and disturb nobody."""

import asyncio
from pathlib import Path

import pytest

from raydix.errors import Cancelled, DeadlineExceeded, Overloaded
from raydix.runtime.api.engine_client import EngineClient
from raydix.runtime.api.outputs import RequestOutput
from raydix.runtime.api.request_options import RequestOptions
from raydix.runtime.model.families.table import Family
from raydix.runtime.testing.engine import InProcessEngine, in_process_engine
from tests.exactness.engines import assert_all_exact, engine_config, make_prompts, run
from tests.exactness.reference import NUM_TOKENS, Prompt, References, assert_exact, generate
from tests.exactness.states import State, reach

PROMPTS = make_prompts(71, [100, 64, 37, 81], num_shared=16)
TURNS = (0, 1, 4, 16, 64, 256, 1024)
"""The turns of the event loop before an abort; several ranks, which are slow here, take some of
them.
"""


async def start_streams(
    client: EngineClient, prompts: list[Prompt]
) -> list[asyncio.Task[RequestOutput]]:
    """Submit long requests and let them go on in the background."""
    tasks = [asyncio.create_task(generate(client, prompt, NUM_TOKENS)) for prompt in prompts]
    await asyncio.sleep(0)
    return tasks


async def wait_for_tokens(engine: InProcessEngine, num_tokens: int) -> None:
    """Return once the engine has generated so many tokens since its start."""
    while (await engine.stats())["scheduler"].get("generation_tokens", 0) < num_tokens:
        await asyncio.sleep(0)


async def test_vanished_client_leaves_nothing_behind(references: References) -> None:
    reference = references(Family.QWEN3)

    async with in_process_engine(engine_config(reference.folder)) as engine:
        other = await engine.connect()
        lost = await start_streams(other, PROMPTS[1:])
        kept = await start_streams(engine.client, PROMPTS[:1])
        await wait_for_tokens(engine, 8)
        await other.close()
        results = await asyncio.gather(*lost, return_exceptions=True)

        assert all(isinstance(result, Cancelled) for result in results)
        await assert_all_exact(engine, reference.expect(PROMPTS[:1]), [await kept[0]])
        stats = await engine.check()
        assert stats["scheduler"]["finished_abort"] == len(lost)
        assert stats["scheduler"]["num_clients"] == 1
        await assert_all_exact(
            engine, reference.expect(PROMPTS), await run(engine, PROMPTS, NUM_TOKENS)
        )


async def test_deadline_raises_with_the_exact_output_so_far(references: References) -> None:
    reference = references(Family.LLAMA)
    [expected] = reference.expect(PROMPTS[:1])

    async with in_process_engine(engine_config(reference.folder)) as engine:
        with pytest.raises(DeadlineExceeded) as raised:
            await generate(engine.client, PROMPTS[0], 150, options=RequestOptions(deadline_s=0.05))
        partial = raised.value.partial
        assert partial is not None
        await assert_exact(engine.client, expected, partial.outputs[0].token_ids[:NUM_TOKENS])
        await engine.check()


async def test_overload_is_told_at_once_and_hurts_nobody_else(references: References) -> None:
    reference = references(Family.QWEN2)
    config = engine_config(
        reference.folder, scheduler={"max_running_requests": 1, "max_waiting_requests": 2}
    )

    async with in_process_engine(config) as engine:
        tasks = await start_streams(engine.client, PROMPTS + make_prompts(72, [50] * 8))
        results = await asyncio.gather(*tasks, return_exceptions=True)

        refused = [result for result in results if isinstance(result, Overloaded)]
        answered = [
            index for index, result in enumerate(results) if not isinstance(result, BaseException)
        ]
        assert all(each.retry_after_s > 0 for each in refused)
        assert len(refused) + len(answered) == len(results)
        assert len(refused) >= len(results) - 4
        outputs = [await tasks[index] for index in answered]
        prompts = [tuple(output.prompt_token_ids) for output in outputs]
        await assert_all_exact(engine, reference.expect(prompts), outputs)
        await engine.check()


@pytest.mark.part
@pytest.mark.parametrize(
    ("family", "state", "tp"),
    [
        *((Family.QWEN3_MOE, state, 1) for state in (State.COLD, State.L1, State.L2, State.L3)),
        (Family.MISTRAL, State.L3, 1),
        (Family.GPT_OSS, State.L2, 2),
        (Family.DEEPSEEK_V2, State.L2, 2),
    ],
)
async def test_abort_at_any_moment_leaves_nothing_behind(
    family: Family, state: State, tp: int, references: References, tmp_path: Path
) -> None:
    """Slow copies, few running requests: aborted in the queue, while loading, and with tokens."""
    reference = references(family)
    config = engine_config(
        reference.folder,
        tmp_path,
        parallel={"tp": tp},
        cache={"l1": {"num_pages": 32, "copy_delay_s": 2e-3}},
        scheduler={"max_running_requests": 2},
    )
    expected = reference.expect(PROMPTS)

    async with in_process_engine(config) as engine:
        await reach(engine, config, state, PROMPTS)
        for num_turns in TURNS[::tp]:
            tasks = await start_streams(engine.client, PROMPTS)
            for _ in range(num_turns):
                await asyncio.sleep(0)
            for task in tasks[1:]:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert not isinstance(results[0], BaseException)
            await assert_all_exact(engine, expected[:1], [results[0]])
            await engine.check()
        await assert_all_exact(engine, expected, await run(engine, PROMPTS, NUM_TOKENS))
        await engine.check()


async def test_an_id_used_again_at_once_never_gets_tokens_of_its_earlier_prompt(
    references: References,
) -> None:
    reference = references(Family.LLAMA)
    expected = reference.expect(PROMPTS)
    params = {"max_tokens": NUM_TOKENS, "temperature": 0.0}

    async with in_process_engine(engine_config(reference.folder)) as engine:
        for index, prompt in enumerate(PROMPTS * 3):
            left = engine.client.generate(prompt, params, "again")
            for _ in range(1 + index % 3):
                await anext(left)
            await left.aclose()

            other = (index + 1) % len(PROMPTS)
            *_, output = [
                each async for each in engine.client.generate(PROMPTS[other], params, "again")
            ]
            assert output.outputs[0].finish_reason == "length"
            await assert_exact(engine.client, expected[other], output.outputs[0].token_ids)

        stats = await engine.check()
        assert engine.client.num_requests == 0
        assert stats["scheduler"]["finished_abort"] == 12
