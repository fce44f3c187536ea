"""A GPU actor with a real model: tokens after a trip of the KV through the arena."""

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from raydix.errors import CheckpointError, ConfigError
from raydix.ids import HostPageId, RequestId, Slot
from raydix.runtime.actors.gpu import GpuActor
from raydix.runtime.actors.links.link import BlockingLink, LinkClosed
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.messages.arrays import Int32Array, int32_array
from raydix.runtime.messages.hello import Hello, Role
from raydix.runtime.messages.plan import (
    AddedRequest,
    DeviceSampling,
    PageCopies,
    StepPlan,
    StepResult,
    TableChanges,
    TransfersDone,
)
from raydix.runtime.model.families.table import Family
from raydix.runtime.testing.links import InProcessLink, in_process_blocking_pair
from raydix.runtime.tiers.host_arena import HostArena
from tests.checkpoints import make_checkpoint

SCHEDULER = Hello(role=Role.SCHEDULER, name="scheduler", incarnation=1, pid=1)
GPU = Hello(role=Role.GPU, name="gpu0", incarnation=1, pid=1)
PAGE = 4
NUM_TOKENS = 8
PROMPT = int32_array(range(3, 3 + 3 * PAGE))
OTHER = int32_array(range(60, 60 + 3 * PAGE))


def config(folder: Path, device: str) -> EngineConfig:
    l2 = {"l2": {"bytes_per_node": 1 << 20}} if device == "cuda" else {}
    cache = {"page_size": PAGE, "l1": {"num_pages": 40}, **l2}
    scheduler = {"max_running_requests": 4, "chunked_prefill_tokens": 64}
    model = {"path": str(folder), "device": device, "dtype": "float32", "max_model_len": 40}
    return EngineConfig.model_validate({"model": model, "cache": cache, "scheduler": scheduler})


class Driver:
    """A Scheduler's hand: makes plans for one GPU actor and waits for each."""

    def __init__(self, actor: GpuActor, arena: HostArena, link: InProcessLink) -> None:
        self.actor = actor
        self.arena = arena
        self._link = link
        self._step = 0
        self._transfer = 0

    async def _run(self, *, copies: int = 0, **columns: Any) -> StepResult:
        self._step += 1
        self._link.send(StepPlan(step=self._step, **columns))
        result: StepResult | None = None
        done: list[int] = []
        while result is None or len(done) < copies:
            message = await asyncio.wait_for(self._link.receive(), 60)
            match message:
                case StepResult():
                    result = message
                case TransfersDone():
                    assert not len(message.stale_transfer_ids)
                    done += message.transfer_ids.tolist()
        return result

    def _pages(self, pages: list[int], host_pages: list[int]) -> PageCopies:
        self._transfer += 1
        return PageCopies(
            transfer_ids=int32_array([self._transfer] * len(pages)),
            groups=int32_array([0] * len(pages)),
            page_ids=int32_array(pages),
            host_page_ids=int32_array(host_pages),
            generations=int32_array(self.arena.generations[host_pages]),
        )

    async def back_up(self, pages: list[int], host_pages: list[int]) -> None:
        await self._run(copies=1, backups=self._pages(pages, host_pages))

    async def generate(
        self, slot: int, prompt: Int32Array, pages: list[int], load: list[int] | None = None
    ) -> list[int]:
        """Greedy tokens of a request in `pages`; with `load`, they come from these host pages.

        Then only the prompt's last token is computed, and its KV goes to the padding page.
        """
        start = 0 if load is None else len(prompt) - 1
        columns: dict[str, Any] = (
            {} if load is None else {"loads": self._pages(pages[: len(load)], load), "copies": 1}
        )

        request = AddedRequest(
            slot=Slot(slot),
            request_id=RequestId(f"r{slot}"),
            token_ids=prompt,
            num_prompt_tokens=len(prompt),
            sampling=DeviceSampling(seed=0),
        )
        table = TableChanges(
            slots=int32_array([slot]),
            starts=int32_array([0]),
            counts=int32_array([len(pages)]),
            page_ids=int32_array(pages),
        )

        wait_for = -1 if load is None else self._transfer
        write_start = start if load is None else len(prompt)
        row = (start, len(prompt) - start, write_start, 0, wait_for)
        result = await self._run(added=(request,), tables=(table,), **_row(slot, *row), **columns)

        tokens = result.token_ids.tolist()
        while len(tokens) < NUM_TOKENS:
            position = len(prompt) + len(tokens) - 1
            result = await self._run(**_row(slot, position, 1, position, len(tokens), -1))
            tokens += result.token_ids.tolist()

        await self._run(removed_slots=int32_array([slot]))
        return tokens


def _row(
    slot: int, start: int, num_tokens: int, write_start: int, output_position: int, load: int
) -> dict[str, Any]:
    return {
        "row_slots": int32_array([slot]),
        "row_starts": int32_array([start]),
        "row_num_tokens": int32_array([num_tokens]),
        "row_write_starts": int32_array([write_start]),
        "row_output_positions": int32_array([output_position]),
        "row_loads": int32_array([load]),
    }


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
async def driver(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Driver]:
    folder = make_checkpoint(tmp_path / "model", Family.QWEN3, seed=5)
    died = threading.Event()
    actor = GpuActor(
        config=config(folder, request.param), name="t", rank=0, incarnation=1, on_fatal=died.set
    )
    facts = await actor.load()
    await actor.prepare(facts.num_pages)
    arena = HostArena.create(facts.layout, 1 << 20, num_threads=1)
    await actor.attach_arena(arena.location)
    link, blocking = in_process_blocking_pair(SCHEDULER, GPU)
    ends = [blocking]

    def dial(stop: threading.Event) -> BlockingLink:
        if not ends:
            raise LinkClosed("there is one Scheduler only")
        return ends.pop()

    actor.serve(dial)
    yield Driver(actor, arena, link)
    assert not died.is_set()
    await actor.shutdown()


async def test_tokens_are_the_same_from_pages_that_went_through_the_arena(driver: Driver) -> None:
    cold = await driver.generate(0, PROMPT, [1, 2, 3, 4, 5])
    await driver.back_up([1, 2, 3], [7, 0, 4])

    warm = await driver.generate(1, PROMPT, [20, 11, 30, 12, 13], load=[7, 0, 4])

    assert warm == cold


@pytest.mark.parametrize("poison", ["zeroed", "from another prompt"])
async def test_a_poisoned_page_changes_the_tokens(driver: Driver, poison: str) -> None:
    """The control of the test above: it can fail."""
    cold = await driver.generate(0, PROMPT, [1, 2, 3, 4, 5])
    await driver.generate(1, OTHER, [6, 7, 8, 9, 10])
    await driver.back_up([1, 2, 3, 7], [7, 0, 4, 9])
    host_pages = [7, 9, 4] if poison == "from another prompt" else [7, 0, 4]
    if poison == "zeroed":
        driver.arena.payload(HostPageId(0), 0)[:] = bytes(
            len(driver.arena.payload(HostPageId(0), 0))
        )

    warm = await driver.generate(2, PROMPT, [20, 11, 30, 12, 13], load=host_pages)

    assert warm != cold


async def test_loading_a_bad_checkpoint_is_a_typed_error(tmp_path: Path) -> None:
    actor = GpuActor(config=config(tmp_path / "absent", "cpu"), name="t", rank=0, incarnation=1)

    with pytest.raises(CheckpointError):
        await actor.load()


async def test_an_l1_larger_than_memory_is_refused_with_what_would_fit(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "model", Family.LLAMA, seed=5)
    sections = config(folder, "cpu").model_dump(exclude_unset=True)
    sections["cache"]["l1"]["num_pages"] = 10**12
    actor = GpuActor(config=EngineConfig.model_validate(sections), name="t", rank=0, incarnation=1)

    with pytest.raises(ConfigError, match=r"cache\.l1\.num_pages to at most \d+"):
        await actor.load()


async def test_ranks_that_load_the_same_checkpoint_report_the_same(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "model", Family.LLAMA, seed=5)
    other = make_checkpoint(tmp_path / "other", Family.LLAMA, seed=6)
    actors = [
        GpuActor(config=config(path, "cpu"), name="t", rank=rank, incarnation=1)
        for rank, path in enumerate((folder, folder, other))
    ]

    first, second, third = [await actor.load() for actor in actors]

    assert first == second
    assert first.fingerprint != third.fingerprint
    assert first.num_pages == (40,)
