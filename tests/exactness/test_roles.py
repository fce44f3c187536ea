"""One engine goes on with what another one has begun: exact from every tier, whoever dies."""

import asyncio
import itertools
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from raydix.runtime.actors.bootstrap.cluster import PrivateCluster
from raydix.runtime.actors.bootstrap.launch import start_engine
from raydix.runtime.actors.links.socket_dialer import connect
from raydix.runtime.api import silent_askings
from raydix.runtime.api.engine_client import EngineClient
from raydix.runtime.api.line_router import LineRouter
from raydix.runtime.api.model_limits import ModelLimits
from raydix.runtime.api.routing_figures import RoutingFigures
from raydix.runtime.api.service import AsyncService
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.config.loading import load_config
from raydix.runtime.messages.hello import Hello, Role
from raydix.runtime.model.families.table import Family
from raydix.runtime.routing import ingress
from raydix.runtime.routing.choice import Place
from raydix.runtime.routing.policies import SoonestNode
from raydix.runtime.routing.split import Split
from raydix.runtime.testing.engine import InProcessEngine, in_process_engine
from raydix.runtime.testing.peers import InProcessPeers
from tests.exactness.engines import (
    MAX_MODEL_LEN,
    assert_all_exact,
    engine_config,
    make_prompts,
)
from tests.exactness.reference import NUM_TOKENS, Prompt, References, generate
from tests.exactness.states import State, reach
from tests.ray_cluster import IMPATIENT, own_name
from tests.service.test_service import kill_engine

ROOT = Path(__file__).parents[2]
PROMPTS = make_prompts(87, [100, 64, 129], num_shared=20)
WAIT_S = 300.0
"""The time for what must come; nothing is measured by it."""


@pytest.fixture(autouse=True)
def split_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever can be split is, whether or not that is worth it."""

    def choose(whole: Place, splits: Sequence[Split]) -> Split | None:
        return min(splits, key=lambda split: split.cost_s, default=None)

    monkeypatch.setattr(ingress, "choose_split", choose)


def config_of(folder: Path, role: str, l3: Path | None = None) -> EngineConfig:
    cache = {"l2": {"bytes_per_node": "4MiB", "pull": {}}}
    return engine_config(folder, l3, role=role, cache=cache)


def on_one_node(folder: Path, role: str) -> EngineConfig:
    """The example of two engines on one node, for the checkpoint of a test."""
    cache = {"load": "always", "l2": {"keep_s": 0}}
    sections = {"model": {"path": str(folder), "max_model_len": MAX_MODEL_LEN}, "cache": cache}
    example = ROOT / "configs" / "prefill-apart-cpu.yaml"
    return load_config(load_config(example, sections), {"role": role})


@dataclass(frozen=True)
class Engines:
    """An engine for prefill, one that decodes, and a client of both."""

    first: InProcessEngine
    second: InProcessEngine
    client: EngineClient
    figures: RoutingFigures


@asynccontextmanager
async def split_engines(folder: Path, state: State, l3: Path | None) -> AsyncIterator[Engines]:
    """Engines of two nodes that pull from each other; both have the prompts in one tier."""
    peers = InProcessPeers()
    async with AsyncExitStack() as stack:
        engines = {}
        for role in ("prefill", "decode"):
            config = config_of(folder, role, None if l3 is None else l3 / role)
            engines[role] = await stack.enter_async_context(
                in_process_engine(config, name=role, peers=peers)
            )
            await reach(engines[role], config, state, PROMPTS)

        figures = RoutingFigures(engines)
        client = await client_of(engines, figures, stack)
        await until_split(client, figures)
        yield Engines(engines["prefill"], engines["decode"], client, figures)


async def client_of(
    engines: Mapping[str, InProcessEngine], figures: RoutingFigures, stack: AsyncExitStack
) -> EngineClient:
    """A client that routes among engines, until the stack is left."""
    limits = ModelLimits.of(next(iter(engines.values())).facts.client)
    client = EngineClient(limits, None, lambda name: None, LineRouter(SoonestNode(), figures))
    stack.push_async_callback(client.close)
    for name, engine in engines.items():
        hello = Hello(role=Role.CLIENT, name="router", incarnation=0, pid=os.getpid())
        record = engine.facts.record
        client.use(name, await connect(record.client_address, hello, record.secret))
    return client


async def until_split(client: EngineClient, figures: RoutingFigures) -> None:
    """Wait until both engines have told who they are, and that pages go from one to the other."""
    async with asyncio.timeout(WAIT_S):
        for number in itertools.count():
            await generate(client, [number % 199, 3], 2)
            if figures.num_split.total():
                return
            await asyncio.sleep(0.02)


async def ask_all(client: EngineClient, prompts: Sequence[Prompt]) -> list[Any]:
    return list(await asyncio.gather(*(generate(client, each, NUM_TOKENS) for each in prompts)))


@pytest.mark.part
@pytest.mark.parametrize("state", [State.COLD, State.L1, State.L2, State.L3])
@pytest.mark.parametrize("family", [Family.QWEN3, Family.GEMMA3, Family.QWEN3_NEXT])
async def test_split_requests_are_exact_in_every_state_of_the_caches(
    family: Family, state: State, references: References, tmp_path: Path
) -> None:
    reference = references(family)
    l3 = tmp_path if state is State.L3 else None
    async with split_engines(reference.folder, state, l3) as split:
        before = split.figures.num_split["decode"]
        outputs = await asyncio.wait_for(ask_all(split.client, PROMPTS), WAIT_S)
        assert split.figures.num_split["decode"] - before == len(PROMPTS)
        await assert_all_exact(split.first, reference.expect(PROMPTS), outputs)

        first, second = await split.first.check(), await split.second.check()
        handed_over = first["scheduler"]["finished_handed_over"]
        assert handed_over >= len(PROMPTS)
        assert first["scheduler"]["num_requests_leaving"] == 0
        if state is State.COLD:
            assert second["host"]["peer_reads_ok"] > 0, "pages have come from the first engine"


@pytest.mark.part
async def test_aborts_in_mid_hand_over_leave_nothing(references: References) -> None:
    reference = references(Family.QWEN3)
    async with split_engines(reference.folder, State.COLD, None) as split:
        for number in range(12):
            [prompt] = make_prompts(number, [90])
            outputs = split.client.generate(list(prompt), {"max_tokens": 8, "ignore_eos": True})
            # Left before the first token, with it, or behind it.
            for _ in range(number % 3):
                await anext(outputs)
            await outputs.aclose()
        for engine in (split.first, split.second):
            stats = await engine.check()
            assert stats["scheduler"]["num_requests_leaving"] == 0


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.parametrize("doomed", ["prefill", pytest.param("decode", marks=pytest.mark.part)])
async def test_streams_go_on_when_either_side_is_killed_in_mid_hand_over(
    doomed: str, references: References, ray_cluster: PrivateCluster
) -> None:
    reference = references(Family.QWEN3)
    prompts = make_prompts(88, [120] * 24)
    names = {role: own_name(role) for role in ("prefill", "decode")}
    async with AsyncExitStack() as stack:
        for role, name in names.items():
            config = on_one_node(reference.folder, role)
            handle = start_engine(config, name, supervision=IMPATIENT)
            stack.push_async_callback(handle.shutdown)

        async with await AsyncService.connect(list(names.values())) as service:
            figures = service.routing_figures
            # They pull nothing, so that whatever is split goes through the L2 of their node.
            async with asyncio.timeout(WAIT_S):
                while not figures.num_split.total():
                    await tokens_of(service, (5, 3), asyncio.Event())
            begun = [asyncio.Event() for _ in prompts]
            tasks = [
                asyncio.create_task(tokens_of(service, prompt, has_begun))
                for prompt, has_begun in zip(prompts, begun, strict=True)
            ]
            # Some have their first token by then, and none can have all: others wait in a queue.
            await asyncio.wait(
                [asyncio.create_task(each.wait()) for each in begun],
                return_when=asyncio.FIRST_COMPLETED,
            )
            await asyncio.to_thread(kill_engine, names[doomed])
            told = await asyncio.wait_for(asyncio.gather(*tasks), WAIT_S)
            assert [len(each) for each in told] == [NUM_TOKENS] * len(prompts)
            for each, tokens in zip(reference.expect(prompts), told, strict=True):
                assert tokens == list(each.token_ids)
            other = names["decode" if doomed == "prefill" else "prefill"]
            await until_nothing_is_held(service, other)


async def tokens_of(
    service: AsyncService, prompt: Sequence[int], has_begun: asyncio.Event
) -> list[int]:
    params = {"max_tokens": NUM_TOKENS, "temperature": 0.0, "output_kind": "delta"}
    tokens: list[int] = []
    async for output in service.generate(list(prompt), params):
        tokens += output.outputs[0].token_ids
        has_begun.set()
    return tokens


async def until_nothing_is_held(service: AsyncService, name: str) -> None:
    """Wait until an engine is idle, and then holds no lease, page or request."""
    async with asyncio.timeout(WAIT_S):
        while True:
            stats = (await service.stats())[name]
            if stats is None or stats["host"] is None:
                # Whoever was killed had the L2 of both, which is on its way back.
                await asyncio.sleep(0.05)
                continue
            held = [
                *(
                    stats["scheduler"][each]
                    for each in ("leases_wanted", "l1_locked_pages", "l1_reserved_pages")
                ),
                *(stats["scheduler"][each] for each in ("num_requests_leaving", "lookups_open")),
                *(stats["host"][each] for each in ("leases", "lookups", "pages_staged")),
            ]
            if not any(held):
                return
            await asyncio.sleep(0.05)


async def test_streams_that_are_parked_by_a_sleep_go_on_exactly_at_another_engine(
    references: References, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(silent_askings, "LEAST_S", 0.0)
    reference = references(Family.QWEN3)
    peers = InProcessPeers()
    sections = {"cache": {"l2": {"bytes_per_node": "4MiB", "pull": {}}}}
    config = engine_config(reference.folder, None, scheduler={"max_drain_s": 0.0}, **sections)
    async with AsyncExitStack() as stack:
        engines = {
            name: await stack.enter_async_context(in_process_engine(config, name=name, peers=peers))
            for name in ("one", "other")
        }
        client = await client_of(engines, RoutingFigures(engines), stack)
        asking = asyncio.create_task(ask_all(client, PROMPTS))
        sleeping = await first_that_runs(engines)
        await sleeping.fall_asleep(False)

        outputs = await asyncio.wait_for(asking, WAIT_S)

        assert await sleeping.phase() == "asleep"
        assert (await sleeping.check())["scheduler"]["finished_abort"] > 0, "some had to leave"
        [awake] = [each for each in engines.values() if each is not sleeping]
        await assert_all_exact(awake, reference.expect(PROMPTS), outputs)
        await awake.check()


async def first_that_runs(engines: Mapping[str, InProcessEngine]) -> InProcessEngine:
    """The engine that has begun a request first."""
    async with asyncio.timeout(WAIT_S):
        while True:
            for engine in engines.values():
                if (await engine.stats())["scheduler"]["num_requests_running"]:
                    return engine
            await asyncio.sleep(0.001)
