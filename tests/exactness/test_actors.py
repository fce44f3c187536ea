"""Ranks that step together, as processes: what threads cannot show is how they meet there."""

import asyncio
from pathlib import Path

import pytest

from raydix.runtime.actors.bootstrap.cluster import PrivateCluster
from raydix.runtime.api.client import AsyncLLM
from raydix.runtime.model.families.table import Family
from tests.exactness.engines import engine_config, make_prompts
from tests.exactness.reference import NUM_TOKENS, Expected, References
from tests.moe.gpu_ranks import NUM_RANKS
from tests.ray_cluster import own_name

PARALLEL = [{"tp": NUM_RANKS}, {"dp": NUM_RANKS, "ep": NUM_RANKS}]
if NUM_RANKS == 4:
    PARALLEL.append({"dp": 2, "tp": 2, "ep": 4})
PROMPTS = make_prompts(71, [100, 49, 1, 130])


@pytest.mark.part
@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.multi_gpu)])
@pytest.mark.parametrize("family", [Family.QWEN3_MOE])
@pytest.mark.parametrize("parallel", PARALLEL, ids=str)
async def test_ranks_in_processes_generate_the_tokens_of_transformers(
    parallel: dict[str, int],
    family: Family,
    device: str,
    references: References,
    ray_cluster: PrivateCluster,
    tmp_path: Path,
) -> None:
    reference = references(family)
    config = engine_config(
        reference.folder,
        tmp_path,
        model={"device": device, "dtype": "float32"},
        parallel=parallel,
    )

    async with await AsyncLLM.start(config, name=own_name("exact")) as engine:
        for _ in range(2):  # cold, then from L1
            answers = await asyncio.gather(*(answer(engine, prompt) for prompt in PROMPTS))
            for expected, token_ids in zip(reference.expect(PROMPTS), answers, strict=True):
                num_decided = count_decided(expected)
                assert token_ids[:num_decided] == expected.token_ids[:num_decided]


async def answer(engine: AsyncLLM, prompt: tuple[int, ...]) -> list[int]:
    """The greedy answer to a prompt."""
    params = {"max_tokens": NUM_TOKENS, "temperature": 0.0, "output_kind": "final"}
    [output] = [output async for output in engine.generate(list(prompt), params)]
    return output.outputs[0].token_ids


def count_decided(expected: Expected) -> int:
    """Tokens before the first that rounding may choose."""
    return next((i for i in range(NUM_TOKENS) if not expected.is_decided(i)), NUM_TOKENS)
