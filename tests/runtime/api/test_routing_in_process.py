"""Two whole engines in one process, and a client that routes: what they tell is what it goes by."""

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

import pytest

from raydix.runtime.actors.gpu_model import LoadedGpuModel, RankPlace
from raydix.runtime.actors.links.socket_dialer import connect
from raydix.runtime.api.engine_client import EngineClient
from raydix.runtime.api.line_router import LineRouter
from raydix.runtime.api.model_limits import ModelLimits
from raydix.runtime.api.routing_figures import RoutingFigures
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.config.loading import load_config
from raydix.runtime.messages.hello import Hello, Role
from raydix.runtime.messages.plan import StepPlan
from raydix.runtime.routing.policies import SoonestNode
from raydix.runtime.testing.engine import InProcessEngine, in_process_engine
from raydix.runtime.testing.sleeping_runner import (
    SleepingOutput,
    SleepingRunner,
    build_sleeping_model,
)
from raydix.runtime.tiers.transfers import WaitLayer

NAMES = ("left", "right")
TOKEN_S = 0.001
PROMPT_TOKENS = 512
WAIT_S = 60.0
"""The time for what must come; nothing is measured by it."""


class TokenSleeper(SleepingRunner):
    """Takes as long for each token."""

    def execute(self, plan: StepPlan, wait_layer: WaitLayer) -> SleepingOutput:
        """Sleep, then make tokens up."""
        time.sleep(TOKEN_S * int(plan.row_num_tokens.sum()))
        return super().execute(plan, wait_layer)


def build_model(config: EngineConfig, place: RankPlace) -> LoadedGpuModel:
    """A model whose prompts take long."""
    loaded = build_sleeping_model(config, place, step_s=0.0)
    sleeping = loaded.prepare(loaded.report.num_pages)
    model = replace(sleeping, runner=TokenSleeper(0.0))
    return replace(loaded, prepare=lambda _num_pages: model)


@dataclass(frozen=True)
class Service:
    """Two engines and a client of both."""

    engines: dict[str, InProcessEngine]
    client: EngineClient
    figures: RoutingFigures

    async def until_known(self, name: str, least: int, most: int) -> None:
        """Wait until so many pages of an engine are known."""
        async with asyncio.timeout(WAIT_S):
            while not least <= self.figures.num_keys[name] <= most:
                await asyncio.sleep(0.005)

    async def ask(self, tokens: list[int]) -> tuple[str, dict[str, int]]:
        """Where a request goes, once it has been answered, and the tokens expected by tier."""
        before = self.figures.num_routed.copy()
        expected = self.figures.num_tokens.copy()
        await answered(self.client, tokens)
        [(name, _)] = (self.figures.num_routed - before).items()
        more = self.figures.num_tokens - expected
        return name, {tier: more[name, tier] for tier in ("l1", "l2")}


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    config = load_config(
        {
            "model": {"path": "none"},
            "cache": {"page_size": 16, "l1": {"num_pages": 256}, "l2": None},
        }
    )
    async with contextlib.AsyncExitStack() as stack:
        engines = {
            name: await stack.enter_async_context(in_process_engine(config, build_model, name=name))
            for name in NAMES
        }
        for engine in engines.values():
            await warm(engine)
        figures = RoutingFigures(NAMES)
        limits = ModelLimits.of(engines["left"].facts.client)
        client = EngineClient(limits, None, lambda name: None, LineRouter(SoonestNode(), figures))
        stack.push_async_callback(client.close)
        for name, engine in engines.items():
            hello = Hello(role=Role.CLIENT, name="router", incarnation=0, pid=os.getpid())
            record = engine.facts.record
            client.use(name, await connect(record.client_address, hello, record.secret))
        yield Service(engines, client, figures)


def prompt(seed: int, num_tokens: int = PROMPT_TOKENS) -> list[int]:
    return [(seed * 1000 + position) % 30_000 for position in range(num_tokens)]


async def answered(client: EngineClient, tokens: list[int]) -> None:
    async for _ in client.generate(tokens, {"max_tokens": 1, "temperature": 0.0}):
        pass


async def warm(engine: InProcessEngine) -> None:
    """Let an engine learn how long prompts take, and forget them."""
    for number in range(6):
        await answered(engine.client, prompt(10 + number, 512 if number % 2 else 32))
    await engine.flush_l1()


async def test_requests_go_where_their_prefix_is_and_not_where_it_was(service: Service) -> None:
    await answered(service.engines["right"].client, prompt(1))
    await service.until_known("right", 32, 10**6)
    assert await service.ask([*prompt(1), 5]) == ("right", {"l1": PROMPT_TOKENS, "l2": 0})

    await service.engines["right"].flush_l1()
    await answered(service.engines["left"].client, prompt(1))
    await service.until_known("right", 0, 0)
    await service.until_known("left", 32, 10**6)
    assert await service.ask([*prompt(1), 6]) == ("left", {"l1": PROMPT_TOKENS, "l2": 0})


async def test_a_burst_is_shared_and_the_errors_of_predictions_are_counted(
    service: Service,
) -> None:
    for name in NAMES:
        await answered(service.engines[name].client, prompt(9, 16))
        await service.until_known(name, 1, 10**6)
    await asyncio.gather(*(answered(service.client, prompt(30 + number)) for number in range(6)))

    routed = service.figures.num_routed
    assert routed.total() == 6
    assert min(routed.values()) >= 2, routed
    figures = service.figures
    assert figures.late.distribution().count + figures.early.distribution().count == 6
