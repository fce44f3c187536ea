"""Engines that pull pages from each other's L2, each with links, threads and arena of its own."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from raydix.runtime.actors.pulls import readers
from raydix.runtime.actors.pulls.leaving import LeavingPages
from raydix.runtime.actors.pulls.page_stream import PageStream
from raydix.runtime.actors.pulls.pull_settings import PullHome
from raydix.runtime.actors.supervision import engine_actors
from raydix.runtime.actors.supervision.core_settings import host_settings
from raydix.runtime.actors.supervision.spawn import ActorKind
from raydix.runtime.api.outputs import RequestOutput
from raydix.runtime.cache.host.settings import HostSettings
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.model.families.table import Family
from raydix.runtime.storage.namespace import Namespace
from raydix.runtime.testing.engine import InProcessEngine, in_process_engine
from raydix.runtime.testing.peers import InProcessPeers
from tests.checkpoints import make_checkpoint
from tests.exactness.engines import (
    CACHING_KINDS,
    PAGE_SIZE,
    assert_all_exact,
    cacheable_tokens,
    count_tokens,
    engine_config,
    make_prompts,
    run,
)
from tests.exactness.reference import References

WAIT_S = 120.0
"""The time for what must come; nothing is measured by it."""
NUM_TOKENS = 8
PROMPTS = make_prompts(83, [100, 90, 70], num_shared=40)


@asynccontextmanager
async def nodes(
    folder: Path, *sections: dict[str, Any], hold: "Hold | None" = None
) -> AsyncIterator[list[InProcessEngine]]:
    """An engine for each of these sections, all of which find each other.

    `hold`: what lets go before they end.
    """
    peers = InProcessPeers()
    async with AsyncExitStack() as stack:
        engines = []
        for number, changes in enumerate(sections):
            config = config_of(folder, **changes)
            engine = in_process_engine(config, name=f"node{number}", peers=peers)
            engines.append(await stack.enter_async_context(engine))
        if hold is not None:
            stack.callback(hold.let_go)
        yield engines


def config_of(folder: Path, **sections: Any) -> EngineConfig:
    """An engine that exchanges pages with others."""
    cache = {"l2": {"bytes_per_node": "4MiB", "pull": {}}}
    return engine_config(folder, cache=cache, **sections)


def count_computed(outputs: Sequence[RequestOutput]) -> int:
    """Prompt tokens that no tier had."""
    sources = [output.metrics.cached_tokens_by_source for output in outputs]
    return sum(
        num_tokens
        for each in sources
        for source, num_tokens in each.items()
        if source.startswith("computed:")
    )


async def flap(engine: InProcessEngine) -> None:
    """Break the links of all that pull from an engine, again and again."""
    host = engine.spawner.latest(ActorKind.HOST_MEMORY)
    assert host is not None
    while True:
        await asyncio.sleep(0.05)
        for reader in tuple(host.plain.host._pulls._readers._readers.values()):
            reader.link.abort("the link flaps")


async def until(
    engine: InProcessEngine, actor: str, is_so: Callable[[dict[str, Any]], bool]
) -> None:
    """Wait for a state that an actor's figures show."""
    async with asyncio.timeout(WAIT_S):
        while not is_so((await engine.stats())[actor] or {}):
            await asyncio.sleep(0.01)


async def until_known(engine: InProcessEngine, *others: InProcessEngine) -> None:
    """Wait until an engine knows of every page that the others' L2 has."""
    num_pages = 0
    for other in others:
        num_pages += (await other.settle())["host"]["pages_ready"]
    assert num_pages
    await until(engine, "scheduler", lambda figures: figures["peer_known_pages"] == num_pages)


@pytest.mark.parametrize("family", CACHING_KINDS)
async def test_what_one_node_has_computed_is_pulled_by_another(
    family: Family, references: References
) -> None:
    reference = references(family)
    expected = reference.expect(PROMPTS)
    async with nodes(reference.folder, {}, {}) as (first, second):
        await assert_all_exact(first, expected, await run(first, PROMPTS, NUM_TOKENS))
        await until_known(second, first)

        outputs = await run(second, PROMPTS, NUM_TOKENS)

        await assert_all_exact(second, expected, outputs)
        cacheable = sum(map(cacheable_tokens, PROMPTS))
        assert count_tokens(outputs, "peer") + count_tokens(outputs, "l1") >= 0.95 * cacheable
        assert count_tokens(outputs, "peer") > 0
        for engine in (first, second):
            await engine.check()


async def test_pages_written_at_one_degree_are_pulled_at_another(references: References) -> None:
    reference = references(Family.QWEN3)
    expected = reference.expect(PROMPTS)
    tp2, tp4 = {"parallel": {"tp": 2}}, {"parallel": {"tp": 4}}
    async with nodes(reference.folder, tp2, tp4) as (first, second):
        await run(first, PROMPTS, NUM_TOKENS)
        await until_known(second, first)

        outputs = await run(second, PROMPTS, NUM_TOKENS)

        await assert_all_exact(second, expected, outputs)
        assert count_tokens(outputs, "peer") > 0
        assert count_computed(outputs) <= len(PROMPTS) * PAGE_SIZE


async def test_what_was_pulled_is_written_to_the_own_l3(
    references: References, tmp_path: Path
) -> None:
    reference = references(Family.QWEN3)
    expected = reference.expect(PROMPTS)
    async with nodes(reference.folder, {}, {"l3": tmp_path}) as (first, second):
        await run(first, PROMPTS, NUM_TOKENS)
        await until_known(second, first)
        pulled = count_tokens(await run(second, PROMPTS, NUM_TOKENS), "peer")
        num_pages = (await second.settle())["host"]["pages_ready"]
        async with asyncio.timeout(WAIT_S):
            while len(list(tmp_path.rglob("*.page"))) < num_pages:
                await asyncio.sleep(0.01)
        await first.flush()
        await second.flush()
        await until(second, "scheduler", lambda figures: figures["peer_known_pages"] == 0)

        outputs = await run(second, PROMPTS, NUM_TOKENS)

        await assert_all_exact(second, expected, outputs)
        assert pulled > 0
        assert count_tokens(outputs, "peer") == 0
        assert count_tokens(outputs, "l3") >= pulled


async def test_pages_of_another_model_are_not_pulled(
    references: References, tmp_path: Path
) -> None:
    reference = references(Family.QWEN3)
    expected = reference.expect(PROMPTS)
    other = make_checkpoint(tmp_path, Family.QWEN3, seed=12, num_hidden_layers=2)
    peers = InProcessPeers()
    async with (
        in_process_engine(config_of(other), name="other", peers=peers) as first,
        in_process_engine(config_of(reference.folder), name="second", peers=peers) as second,
        in_process_engine(config_of(reference.folder), name="third", peers=peers) as third,
    ):
        await run(first, PROMPTS, NUM_TOKENS)
        await run(second, PROMPTS[:1], NUM_TOKENS)
        await until_known(third, second)

        outputs = await run(third, PROMPTS[1:], NUM_TOKENS)

        await assert_all_exact(third, expected[1:], outputs)
        assert (await third.stats())["scheduler"]["peers"] == 1
        # What both prompts begin with came from the one; nothing came from the other.
        assert count_tokens(outputs, "peer") <= 2 * 40


class Hold:
    """Lets so many pieces pass from all nodes, and then none."""

    def __init__(self, num_pieces: int) -> None:
        self._permits = threading.Semaphore(num_pieces)
        self._is_over = False

    def send_pages(self, stream: PageStream, leaving: LeavingPages, namespace: Namespace) -> None:
        """Do as the holder's threads do, as long as pieces may pass."""
        while (piece := leaving.take()) is not None:
            self._permits.acquire()
            if self._is_over:
                break
            stream.send(piece.buffers(namespace))
            leaving.finish(piece)
        stream.close()
        stream.release()

    def let_go(self) -> None:
        """Wake the threads that wait; nothing passes any more."""
        self._is_over = True
        self._permits.release(64)


def settings_with(**changes: Any) -> Callable[..., HostSettings]:
    """How HostMemory fetches, but for these changes.

    It waits for long: what a busy machine answers late would be computed, or asked about again a
    minute later.
    """
    patient = {"exists_deadline_s": WAIT_S, "patience_s": WAIT_S, "min_read_patience_s": WAIT_S}

    def changed(*arguments: Any, **options: Any) -> HostSettings:
        settings = host_settings(*arguments, **options)
        return replace(settings, storage=replace(settings.storage, **patient, **changes))

    return changed


@pytest.fixture(autouse=True)
def patient_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """No engine takes a slow answer for none."""
    monkeypatch.setattr(engine_actors, "host_settings", settings_with())


async def test_a_holder_that_dies_in_the_middle_costs_what_was_missing(
    references: References, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages go one by one, and the holder of most of them ends when three have come."""
    one_by_one = settings_with(batch_pages=1, max_read_batches=1)
    monkeypatch.setattr(engine_actors, "host_settings", one_by_one)
    hold = Hold(num_pieces=3)
    monkeypatch.setattr(readers, "send_pages", hold.send_pages)
    reference = references(Family.QWEN3)
    prompt = PROMPTS[0]
    expected = reference.expect([prompt])
    async with nodes(reference.folder, {}, {}, hold=hold) as (first, second):
        await run(first, [prompt], NUM_TOKENS)
        await until_known(second, first)
        asking = asyncio.create_task(run(second, [prompt], NUM_TOKENS))
        await until(second, "host", lambda figures: figures.get("peer_reads_ok", 0) == 3)

        host = first.spawner.latest(ActorKind.HOST_MEMORY)
        assert host is not None
        host.kill()
        await until(second, "host", lambda figures: figures["peers"] == 0)

        outputs = await asking
        await assert_all_exact(second, expected, outputs)
        assert count_tokens(outputs, "peer") == 3 * PAGE_SIZE
        assert count_computed(outputs) == len(prompt) - 3 * PAGE_SIZE
        await second.check()


async def test_a_holder_that_hangs_fails_no_request(
    references: References, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers, tells its keys, and sends no page."""
    hold = Hold(num_pieces=0)
    monkeypatch.setattr(readers, "send_pages", hold.send_pages)
    make_home = PullHome.of
    monkeypatch.setattr(
        PullHome, "of", lambda *arguments: replace(make_home(*arguments), patience_s=0.5)
    )
    reference = references(Family.QWEN3)
    expected = reference.expect(PROMPTS)
    async with nodes(reference.folder, {}, {}, hold=hold) as (first, second):
        await run(first, PROMPTS, NUM_TOKENS)
        await until_known(second, first)

        async with asyncio.timeout(WAIT_S):
            outputs = await run(second, PROMPTS, NUM_TOKENS)

        await assert_all_exact(second, expected, outputs)
        assert count_tokens(outputs, "peer") == 0
        assert (await second.stats())["host"]["peers_lost"] >= 1


async def test_links_that_flap_fail_no_request_and_pulls_go_on(references: References) -> None:
    reference = references(Family.QWEN3)
    prompts = make_prompts(84, [100] * 12)
    expected = reference.expect(prompts)
    async with nodes(reference.folder, {}, {}) as (first, second):
        await run(first, prompts, NUM_TOKENS)
        flapping = asyncio.create_task(flap(first))
        outputs = [(await run(second, [prompt], NUM_TOKENS))[0] for prompt in prompts[:-1]]
        flapping.cancel()
        await asyncio.gather(flapping, return_exceptions=True)
        await assert_all_exact(second, expected[:-1], outputs)

        await second.flush()
        await until_known(second, first)
        last = await run(second, prompts[-1:], NUM_TOKENS)

        await assert_all_exact(second, expected[-1:], last)
        assert count_tokens(last, "peer") > 0
        for engine in (first, second):
            await engine.check()
