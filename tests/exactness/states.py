"""Ways to bring the pages of prompts into one tier and out of those above it."""

from collections.abc import Sequence
from enum import StrEnum

from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.testing.engine import InProcessEngine
from tests.exactness.engines import MAX_MODEL_LEN, PAGE_SIZE, make_prompts, run
from tests.exactness.reference import Prompt

_FILLER_SEED = 99


class State(StrEnum):
    """Where a prompt's pages are when it comes again; none if L1 is too small (RETRACTION)."""

    COLD = "cold"
    L1 = "l1"
    L2 = "l2"
    L3 = "l3"
    RETRACTION = "retraction"


async def reach(
    engine: InProcessEngine, config: EngineConfig, state: State, prompts: Sequence[Prompt]
) -> None:
    """Bring the engine, which is new, into a state."""
    if state in (State.COLD, State.RETRACTION):
        return
    await compute(engine, config, prompts)
    if state is State.L1:
        return
    await displace_l1(engine, config)
    if state is State.L3:
        await engine.settle()
        await engine.flush()


async def compute(engine: InProcessEngine, config: EngineConfig, prompts: Sequence[Prompt]) -> None:
    """Compute prompts as often as the write policy wants before it keeps their pages."""
    for _ in range(
        config.cache.write_threshold
        if config.cache.write_policy == "write_through_selective"
        else 1
    ):
        await run(engine, prompts, 1)
    await engine.settle()


async def displace_l1(engine: InProcessEngine, config: EngineConfig) -> None:
    """Empty L1, by other prompts if pages are written only before their eviction."""
    if config.cache.write_policy == "write_back":
        num_pages = config.cache.l1.num_pages
        assert num_pages is not None
        filler_pages = (MAX_MODEL_LEN - PAGE_SIZE) // PAGE_SIZE
        num_fillers = config.parallel.dp * 2 * -(-num_pages // filler_pages)
        for filler in make_prompts(_FILLER_SEED, [filler_pages * PAGE_SIZE] * num_fillers):
            await run(engine, [filler], 1)
    await engine.settle()
    await engine.flush_l1()


async def occupy_slots(engine: InProcessEngine, config: EngineConfig) -> list[Prompt]:
    """Short prompts that take every slot of every rank, so that what comes next has to wait."""
    return make_prompts(
        _FILLER_SEED + 1, [5] * config.parallel.dp * config.scheduler.max_running_requests
    )
