"""A node's L2 outlives engines and is shared by them: real actors on the cpu, one Ray cluster.

The tests of this file follow each other on the same engines, and end with the L2.
"""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import ray

from raydix.errors import BadRequest, ConfigError
from raydix.runtime.actors.bootstrap.cluster import PrivateCluster
from raydix.runtime.actors.bootstrap.control_client import call_l2
from raydix.runtime.actors.bootstrap.engine_handle import EngineHandle
from raydix.runtime.actors.bootstrap.launch import start_engine
from raydix.runtime.actors.l2_record import L2Record, l2s_of
from raydix.runtime.actors.process import wait_for_exit
from raydix.runtime.api.client import AsyncLLM
from raydix.runtime.api.outputs import RequestOutput
from raydix.runtime.cli import status
from raydix.runtime.config.loading import load_config
from raydix.runtime.model.families.table import Family
from tests.checkpoints import make_checkpoint
from tests.ray_cluster import IMPATIENT, own_name

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.part(together=True)]

PAGE_SIZE = 16
MIN_HITS = 0.95
PROMPT_TOKENS = 400
PATIENCE_S = 120.0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that no other test has: its L2 is nobody else's."""
    folder = tmp_path_factory.mktemp("nodes")
    return make_checkpoint(folder, Family.QWEN3, seed=40, max_position_embeddings=2048)


def start(name: str, model: Path, **l2: Any) -> EngineHandle:
    """Start an engine that shares the L2 of the node."""
    cache = {
        "page_size": PAGE_SIZE,
        "l1": {"num_pages": 128},
        "l2": {"bytes_per_node": "16MiB", **l2},
        "load": "always",
    }
    config = load_config({"model": {"path": str(model)}, "cache": cache})
    return start_engine(config, own_name(name), supervision=IMPATIENT)


@pytest.fixture(scope="module")
def pair(ray_cluster: PrivateCluster, model: Path) -> Iterator[tuple[EngineHandle, EngineHandle]]:
    """Two engines, started at once."""
    with ThreadPoolExecutor() as pool:
        first, second = pool.map(lambda name: start(name, model), ("first", "second"))
    yield first, second
    for handle in (first, second):
        asyncio.run(handle.shutdown())


def prompt(seed: int) -> list[int]:
    return [(seed * 37 + place * place) % 199 for place in range(PROMPT_TOKENS)]


async def ask(handle: EngineHandle, seed: int, num_tokens: int = 24) -> RequestOutput:
    """The whole answer of an engine to a prompt."""
    sampling = {"max_tokens": num_tokens, "temperature": 0, "ignore_eos": True}
    async with await AsyncLLM.connect(handle.name) as client:
        outputs = [output async for output in client.generate(prompt(seed), sampling)]
    return outputs[-1]


async def ask_all(handle: EngineHandle, seeds: range, num_tokens: int = 24) -> list[list[int]]:
    """The tokens of the answers to several prompts at once."""
    outputs = await asyncio.gather(*(ask(handle, seed, num_tokens) for seed in seeds))
    return [tokens_of(output) for output in outputs]


def tokens_of(output: RequestOutput) -> list[int]:
    return list(output.outputs[0].token_ids)


def hits_of(output: RequestOutput) -> float:
    """The part of what a cache could have that came from L2."""
    from_l2 = output.metrics.cached_tokens_by_source.get("l2", 0)
    return from_l2 / ((PROMPT_TOKENS - 1) // PAGE_SIZE * PAGE_SIZE)


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not await condition():
            await asyncio.sleep(0.05)


async def backed_up(handle: EngineHandle) -> None:
    """Return once all that was computed is in L2."""

    async def is_idle() -> bool:
        figures = (await handle.call("stats"))["scheduler"]
        return not (figures["dirty_pages"] or figures["transfers_in_flight"])

    await until(is_idle)


async def in_order(handle: EngineHandle) -> None:
    """Return once nothing of L2 is held for anybody; then every invariant holds."""

    async def is_quiet() -> bool:
        figures = (await handle.call("stats"))["host"]
        return figures is not None and not (
            figures["pages_quarantined"]
            or figures["leases"]
            or figures["pages_filling"] - figures["pages_granted"]
        )

    await handle.call("wait_all_serving")
    await until(is_quiet)
    await handle.call("check")


async def pid_of(handle: EngineHandle, actor: str) -> int | None:
    """The process of an engine's actor; None while it is being restarted."""
    pid: int | None = (await handle.call("health"))[actor]["pid"]
    return pid


async def replaced(handle: EngineHandle, actor: str, former: int) -> None:
    """Return once another process has taken the place of this one."""

    async def is_another() -> bool:
        return await pid_of(handle, actor) not in (None, former)

    await until(is_another)


async def found(model: Path) -> list[tuple[L2Record, dict[str, Any]]]:
    """The L2s of this node for pages of the model, and how they describe themselves."""
    records = l2s_of(ray.get_runtime_context().get_node_id())
    described = [(record, await call_l2(record, "describe")) for record in records]
    return [each for each in described if each[1]["model_path"] == str(model)]


Pair = tuple[EngineHandle, EngineHandle]


async def test_engines_that_start_at_once_share_one_l2(pair: Pair, model: Path) -> None:
    [(record, described)] = await found(model)
    assert sorted(described["engines"]) == sorted(handle.name for handle in pair)
    assert described["ends_in_s"] is None
    assert {await pid_of(handle, "host") for handle in pair} == {record.pid}


async def test_prompt_of_one_engine_comes_from_l2_in_another(pair: Pair) -> None:
    first, second = pair
    cold = await ask(first, 1)
    assert hits_of(cold) == 0
    await backed_up(first)
    warm = await ask(second, 1)
    assert tokens_of(warm) == tokens_of(cold)
    assert hits_of(warm) >= MIN_HITS


async def test_tokens_are_exact_with_both_under_load(pair: Pair) -> None:
    first, second = pair
    seeds = range(10, 16)
    # One after the other: nothing is cached or shared yet.
    expected = [tokens_of(await ask(first, seed)) for seed in seeds]
    await first.call("flush")
    for _ in range(2):
        answers = await asyncio.gather(*(ask_all(handle, seeds) for handle in (first, second)))
        assert answers == [expected, expected]
    for handle in pair:
        await in_order(handle)


async def test_death_of_one_scheduler_disturbs_no_other(pair: Pair) -> None:
    first, second = pair
    seeds = range(20, 24)
    expected = [tokens_of(await ask(second, seed, 300)) for seed in seeds]
    await second.call("flush")

    killed = await pid_of(first, "scheduler")
    assert killed is not None
    load = asyncio.gather(*(ask_all(handle, seeds, 300) for handle in pair))
    await until(lambda: is_running(first, len(seeds)))
    os.kill(killed, signal.SIGKILL)

    assert await load == [expected, expected]
    await replaced(first, "scheduler", killed)
    for handle in pair:
        await in_order(handle)
    assert (await second.call("stats"))["restarts"]["scheduler"] == 0


async def is_running(handle: EngineHandle, num_requests: int) -> bool:
    figures = (await handle.call("stats"))["scheduler"]
    return bool(figures["num_requests_running"] == num_requests)


async def test_death_of_host_memory_stops_neither_engine_and_both_find_the_next(
    pair: Pair, model: Path
) -> None:
    seeds = range(30, 34)
    expected = [tokens_of(await ask(pair[0], seed, 300)) for seed in seeds]
    killed = await pid_of(pair[0], "host")
    assert killed is not None
    load = asyncio.gather(*(ask_all(handle, seeds, 300) for handle in pair))
    await until(lambda: is_running(pair[1], len(seeds)))
    os.kill(killed, signal.SIGKILL)

    assert await load == [expected, expected]
    for handle in pair:
        await replaced(handle, "host", killed)
        await in_order(handle)
    [(record, described)] = await found(model)
    assert sorted(described["engines"]) == sorted(handle.name for handle in pair)
    assert {await pid_of(handle, "host") for handle in pair} == {record.pid}

    # Both write to it again, and read what the other one wrote.
    for one, other, seed in ((*pair, 35), (*pair[::-1], 36)):
        cold = await ask(one, seed)
        await backed_up(one)
        warm = await ask(other, seed)
        assert tokens_of(warm) == tokens_of(cold)
        assert hits_of(warm) >= MIN_HITS


async def test_engine_that_wants_another_l2_is_refused_while_it_is_used(
    pair: Pair, model: Path
) -> None:
    with pytest.raises(ConfigError, match=r"is used by .*bytes_per_node is 32MiB, and there 16MiB"):
        await asyncio.to_thread(start, "larger", model, bytes_per_node="32MiB")
    [(_, described)] = await found(model)
    assert len(described["engines"]) == len(pair)


async def test_l2_outlives_all_engines_and_ends_when_it_is_not_to_be_kept(
    pair: Pair, model: Path
) -> None:
    cold = await ask(pair[0], 50)
    await backed_up(pair[0])
    [(record, _)] = await found(model)
    for handle in pair:
        await kill(handle)

    async def is_unused() -> bool:
        [(_, described)] = await found(model)
        return not described["engines"]

    await until(is_unused)
    [(_, described)] = await found(model)
    assert 0 < described["ends_in_s"] <= 600

    # The next engine finds it warm; after its end it gives way to one of another size.
    third = await asyncio.to_thread(start, "third", model)
    warm = await ask(third, 50)
    assert tokens_of(warm) == tokens_of(cold)
    assert hits_of(warm) >= MIN_HITS
    assert await pid_of(third, "host") == record.pid
    await in_order(third)
    with pytest.raises(BadRequest, match=f"{record.name} is used by {third.name}"):
        await status._stop(record.name, cache=False)
    assert "stays for a while" in await status._stop(third.name, cache=False)
    await third.shutdown()
    await until(is_unused)

    last = await asyncio.to_thread(start, "last", model, bytes_per_node="32MiB", keep_s=0)
    assert tokens_of(await ask(last, 50)) == tokens_of(cold)
    [(other, described)] = await found(model)
    assert other.pid != record.pid
    assert described["engines"] == [last.name]
    await wait_for_exit(record.pid)

    # Nobody is to keep it any more, so nothing is left.
    await last.shutdown()
    async with asyncio.timeout(PATIENCE_S):
        await wait_for_exit(other.pid)
    assert await found(model) == []


async def kill(handle: EngineHandle) -> None:
    """SIGKILL of every process of an engine at once, but L2, which is not its own."""
    health = await handle.call("health")
    own = handle._own
    assert own is not None, "this process has started it"
    supervisor = await own.supervisor.__ray_call__.remote(lambda _: os.getpid())
    for pid in (supervisor, *(each["pid"] for name, each in health.items() if name != "host")):
        os.kill(pid, signal.SIGKILL)
