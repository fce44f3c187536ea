"""Families × states × policies × chunks × KV groups and more, pairwise: always the same tokens."""

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from raydix.runtime.actors.torch_model import load_gpu_model
from raydix.runtime.api.outputs import RequestOutput
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.model.families.table import Family
from raydix.runtime.model.spec.kv_groups import derive_kv_groups
from raydix.runtime.testing.engine import InProcessEngine, in_process_engine
from tests.exactness.engines import (
    DEVICES,
    PAGE_SIZE,
    assert_all_exact,
    count_tokens,
    engine_config,
    make_prompts,
    run,
)
from tests.exactness.pairwise import Case, pairwise
from tests.exactness.reference import Prompt, References
from tests.exactness.states import State, occupy_slots, reach

FACTORS: dict[str, Sequence[Any]] = {
    "family": list(Family),
    "state": list(State),
    "write_policy": ["write_through", "write_through_selective", "write_back"],
    "strategy": ["best_effort", "wait_complete", "timeout"],
    "chunk": [PAGE_SIZE, 3 * PAGE_SIZE, None],
    "num_requests": [1, 20],
    "dp": [1, 2],
    "tp": [1, 2],
    "copy_delay_s": [0.0, 2e-4],
    "policy": ["lpm", "fcfs"],
    "kv_groups": [1, 2],
    "tokens_per_window": [PAGE_SIZE, 8192],
}
CASES = pairwise(FACTORS, seed=3)
LENGTHS = [100, 37, 64, 81]
NUM_TOKENS = {1: 64, 20: 24}
NUM_L1_PAGES = 72
"""Fewer than the prompts of many requests and what they generate fill."""
RETRACTION_PAGES = 17
"""Enough for the longest request alone; any two outgrow it together."""
OF_WINDOWS_ALONE = (Family.MISTRAL,)
"""Their requests need no more pages as they generate: what is admitted has room to the end."""
RETRACTION_REQUESTS = {1: 8, 20: 16}
"""The number of requests, of 64 tokens each. A single request is never retracted."""


def case_id(case: Case) -> str:
    """All values of a case."""
    return "-".join(str(value) for value in case.values())


def case_config(case: Case, folder: Path, l3: Path, device: str) -> EngineConfig:
    """The configuration of a case, whose timeout never passes, however slow the machine is."""
    num_pages = RETRACTION_PAGES if case["state"] is State.RETRACTION else NUM_L1_PAGES
    return engine_config(
        folder,
        l3,
        model={"device": device, "dtype": "float32"},
        parallel={"dp": case["dp"], "tp": case["tp"]},
        cache={
            "l1": {
                "num_pages": num_pages,
                "tokens_per_window": case["tokens_per_window"],
                "copy_delay_s": case["copy_delay_s"],
            },
            "write_policy": case["write_policy"],
            "prefetch": {"strategy": case["strategy"], "base_s": 30.0, "cap": "none"},
        },
        scheduler={"chunked_prefill_tokens": case["chunk"], "policy": case["policy"]},
    )


def case_prompts(case: Case) -> list[Prompt]:
    """One prompt, or groups of four lengths in which prompts share their first two pages."""
    num_prompts = case["num_requests"]
    if case["state"] is State.RETRACTION:
        num_prompts = RETRACTION_REQUESTS[num_prompts]
    if num_prompts == 1:
        return make_prompts(5, LENGTHS[:1])
    groups = range(num_prompts // len(LENGTHS))
    return [
        prompt
        for group in groups
        for prompt in make_prompts(50 + group, LENGTHS, num_shared=2 * PAGE_SIZE)
    ]


async def measure(
    engine: InProcessEngine, config: EngineConfig, case: Case, num_tokens: int
) -> list[RequestOutput]:
    """Run the prompts of a case; with `best_effort` they wait, so that pages can arrive in time."""
    prompts = case_prompts(case)
    if case["state"] is not State.L3 or case["strategy"] != "best_effort":
        return await run(engine, prompts, num_tokens)
    blockers = asyncio.create_task(run(engine, await occupy_slots(engine, config), 12))
    while (await engine.stats())["scheduler"]["num_requests_running"] == 0:
        await asyncio.sleep(0)
    outputs = await run(engine, prompts, num_tokens)
    await blockers
    return outputs


def assert_reached(case: Case, stats: dict[str, Any], outputs: Sequence[RequestOutput]) -> None:
    """The sources prove that the pages came from where the case says."""
    state = case["state"]
    found = {source: count_tokens(outputs, source) for source in ("l1", "l2", "l3")}
    if state is State.RETRACTION:
        is_growing = case["family"] not in OF_WINDOWS_ALONE
        assert stats["scheduler"].get("retracted_requests", 0) > 0 or not is_growing
    elif state is State.COLD:
        # Together, requests share what one of them has computed, in whatever tier it is when they
        # are looked up.
        assert case["num_requests"] > 1 or not any(found.values())
    else:
        assert found[state.value] > 0, found


@pytest.mark.part
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("case", CASES, ids=case_id)
async def test_tokens_do_not_depend_on_cache_or_schedule(
    case: Case, device: str, references: References, tmp_path: Path
) -> None:
    if device == "cuda":
        case = {**case, "dp": 1, "tp": 1, "copy_delay_s": 0.0}
    reference = references(case["family"])
    config = case_config(case, reference.folder, tmp_path, device)
    prompts = case_prompts(case)
    num_tokens = 64 if case["state"] is State.RETRACTION else NUM_TOKENS[case["num_requests"]]
    expected = reference.expect(prompts)

    split_at = range(1, case["kv_groups"])
    group_layers = partial(derive_kv_groups, split_at=split_at)
    build_model = partial(load_gpu_model, group_layers=group_layers)
    async with in_process_engine(config, build_model) as engine:
        await reach(engine, config, case["state"], prompts)
        outputs = await measure(engine, config, case, num_tokens)
        await assert_all_exact(engine, expected, outputs)
        assert_reached(case, await engine.check(), outputs)
