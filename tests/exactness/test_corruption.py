"""Any bad object in any backend: a counted miss, the cold run's tokens, a prefix that heals."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
import pytest_asyncio

from raydix.runtime.api.outputs import RequestOutput
from raydix.runtime.config.kv_layout import OBJECT_HEADER_BYTES
from raydix.runtime.messages.host import ObjectStatus
from raydix.runtime.model.families.table import Family
from raydix.runtime.storage.backends.corruption import Corruption, corrupt
from raydix.runtime.storage.namespace import NAMESPACE_BYTES
from raydix.runtime.testing.engine import InProcessEngine, in_process_engine
from tests.exactness.engines import (
    PAGE_SIZE,
    assert_all_exact,
    cacheable_tokens,
    count_tokens,
    engine_config,
    make_prompts,
    run,
)
from tests.exactness.l3_damage import StoredObjects
from tests.exactness.l3_stores import EMPTY_IS_REFUSED, L3_BACKENDS, l3_store
from tests.exactness.poison import page_key
from tests.exactness.reference import Prompt, Reference, References
from tests.runtime.storage.backends.bad_objects import FOUND_AS

pytestmark = pytest.mark.asyncio(loop_scope="module")

[PROMPT, OTHER] = make_prompts(61, [100, 100])
NUM_PAGES = cacheable_tokens(PROMPT) // PAGE_SIZE
BAD_PAGE = 2
NUM_TOKENS = 24
VICTIMS = [*((backend, Family.QWEN3) for backend in L3_BACKENDS), ("file", Family.DEEPSEEK_V2)]
OTHER_WEIGHTS = bytes([0xA5]) * NAMESPACE_BYTES


@dataclass(frozen=True)
class Victim:
    """An engine on one backend, and its answer when nothing was cached."""

    backend: str
    reference: Reference
    engine: InProcessEngine
    stored: StoredObjects
    cold: RequestOutput

    @property
    def num_objects(self) -> int:
        """The number of the prompt's objects: one for each page and KV group."""
        return NUM_PAGES * len(self.engine.facts.layout.groups)

    async def store(self) -> None:
        """Have L3, and nothing else, hold both prompts whole."""
        await self.engine.flush(l3=True)
        await run(self.engine, [PROMPT, OTHER], 1)
        await self.engine.settle()
        await self.engine.flush()

    async def read(self, prompt: Prompt, page: int) -> bytes:
        """A good object."""
        return await asyncio.to_thread(self.stored.read, prompt, page)

    async def replace(self, data: bytes) -> None:
        """Put `data` in the place of the page that is to go bad."""
        await asyncio.to_thread(self.stored.replace, PROMPT, BAD_PAGE, data)

    async def ask(self) -> tuple[RequestOutput, dict[str, int]]:
        """The output, and which statuses its reads had; L3 alone holds pages, before and after."""
        before = await self._num_reads()
        [output] = await run(self.engine, [PROMPT], NUM_TOKENS)
        await self.engine.check()
        after = await self._num_reads()
        await self.engine.flush()
        return output, {
            status: after[status] - before.get(status, 0) for status in after if after[status]
        }

    async def _num_reads(self) -> dict[str, int]:
        host = (await self.engine.stats())["host"]
        prefix = "l3_reads_"
        return {
            name.removeprefix(prefix): count
            for name, count in host.items()
            if name.startswith(prefix)
        }


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=VICTIMS)
async def victim(
    request: pytest.FixtureRequest, references: References, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Victim]:
    backend, family = request.param
    reference = references(family)
    with l3_store(backend, tmp_path_factory.mktemp(backend)) as l3:
        config = engine_config(reference.folder, cache={"l3": l3})
        async with in_process_engine(config) as engine:
            [cold] = await run(engine, [PROMPT], NUM_TOKENS)
            await assert_all_exact(engine, reference.expect([PROMPT]), [cold])
            yield Victim(backend, reference, engine, StoredObjects(engine), cold)


async def assert_counted_and_healed(victim: Victim, status: ObjectStatus, reason: str) -> None:
    """The bad page is a miss counted under `status`; then L3 holds the whole prompt again."""
    output, reads = await victim.ask()

    assert output.outputs[0].token_ids == victim.cold.outputs[0].token_ids
    assert count_tokens([output], "l3") == BAD_PAGE * PAGE_SIZE
    assert count_tokens([output], f"computed:{reason}") == (NUM_PAGES - BAD_PAGE) * PAGE_SIZE
    assert nonzero(reads) == {"ok": victim.num_objects - 1, status.name.lower(): 1}
    healed, reads = await victim.ask()
    assert healed.outputs[0].token_ids == victim.cold.outputs[0].token_ids
    assert count_tokens([healed], "l3") == NUM_PAGES * PAGE_SIZE
    assert nonzero(reads) == {"ok": victim.num_objects}


def nonzero(counts: dict[str, int]) -> dict[str, int]:
    return {name: count for name, count in counts.items() if count}


@pytest.mark.part
@pytest.mark.parametrize("kind", Corruption)
async def test_damaged_object(kind: Corruption, victim: Victim) -> None:
    await victim.store()
    data = corrupt(await victim.read(PROMPT, BAD_PAGE), kind)
    if not data and victim.backend in EMPTY_IS_REFUSED:
        data = b"?"
    await victim.replace(data)

    await assert_counted_and_healed(victim, FOUND_AS[kind], "bad_object")


async def test_object_of_another_prompt(victim: Victim) -> None:
    await victim.store()
    await victim.replace(await victim.read(OTHER, BAD_PAGE))

    await assert_counted_and_healed(victim, ObjectStatus.WRONG_KEY, "bad_object")


async def test_object_of_another_page_of_the_prompt(victim: Victim) -> None:
    await victim.store()
    await victim.replace(await victim.read(PROMPT, BAD_PAGE + 1))

    await assert_counted_and_healed(victim, ObjectStatus.WRONG_KEY, "bad_object")


async def test_object_of_other_weights(victim: Victim) -> None:
    await victim.store()
    payload = (await victim.read(OTHER, BAD_PAGE))[OBJECT_HEADER_BYTES:]
    stale = victim.stored.signed(payload, page_key(PROMPT, BAD_PAGE), OTHER_WEIGHTS)
    await victim.replace(stale)

    await assert_counted_and_healed(victim, ObjectStatus.WRONG_NAMESPACE, "bad_object")


async def test_object_half_old_half_new(victim: Victim) -> None:
    await victim.store()
    new, old = await victim.read(PROMPT, BAD_PAGE), await victim.read(OTHER, BAD_PAGE)
    middle = OBJECT_HEADER_BYTES + (len(new) - OBJECT_HEADER_BYTES) // 2
    await victim.replace(new[:middle] + old[middle:])

    await assert_counted_and_healed(victim, ObjectStatus.BAD_CHECKSUM, "bad_object")


async def test_object_gone_between_exists_and_read(victim: Victim) -> None:
    await victim.store()
    victim.stored.delete_at_next_read(PROMPT, BAD_PAGE)

    await assert_counted_and_healed(victim, ObjectStatus.MISSING, "not_found")


async def test_comparison_fails_on_wrong_bytes_under_a_right_header(victim: Victim) -> None:
    await victim.store()
    payload = (await victim.read(OTHER, BAD_PAGE))[OBJECT_HEADER_BYTES:]
    poison = victim.stored.signed(payload, page_key(PROMPT, BAD_PAGE), victim.stored.namespace)
    await victim.replace(poison)

    output, reads = await victim.ask()

    assert nonzero(reads) == {"ok": victim.num_objects}
    assert output.outputs[0].token_ids != victim.cold.outputs[0].token_ids
    with pytest.raises(AssertionError, match=r"token \d+ is \d+, not \d+"):
        await assert_all_exact(victim.engine, victim.reference.expect([PROMPT]), [output])
