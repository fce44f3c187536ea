"""Two engines that find each other's pages, and long contexts to ask them about."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

from benchmarks.engine.engines import (
    Answer,
    Options,
    Prompts,
    ask,
    dummy_config,
    engine_name,
    expect_sources,
    settle,
)
from benchmarks.engine.workloads import Contexts
from benchmarks.model.model_shapes import ModelConfig
from raydix.runtime.actors.bootstrap.cluster import PrivateCluster
from raydix.runtime.actors.bootstrap.launch import start_engine
from raydix.runtime.actors.gpu_model import LoadedGpuModel, RankPlace
from raydix.runtime.actors.torch_builder import build_torch_model
from raydix.runtime.api.client import AsyncLLM
from raydix.runtime.config.engine import EngineConfig

PULLING: Mapping[str, object] = {"pull": {}}
"""What `cache.l2` says of engines that pull from each other."""
_PAGE_SIZE = 64
_POLL_S = 0.01


async def ask_each(llm: AsyncLLM, contexts: list[list[int]], **cached_tokens: int) -> list[Answer]:
    """An answer about each context, which must come from where `cached_tokens` says."""
    answers = []
    for context in contexts:
        answers.append(await ask(llm.generate, context, 1))
        await settle(llm.stats)
        expect_sources(answers[-1], **cached_tokens)
    return answers


async def until_known(puller: AsyncLLM, holder: AsyncLLM) -> None:
    """Wait until one engine knows of all pages that the other one's L2 has."""
    num_pages = (await holder.stats())["host"]["pages_ready"]
    while (await puller.stats())["scheduler"]["peer_known_pages"] < num_pages:
        await asyncio.sleep(_POLL_S)


def sections_of(sizes: Contexts, tp: int, l2: Mapping[str, object]) -> dict[str, Any]:
    """The configuration of each engine, but for its model."""
    sections = sizes.sections(_PAGE_SIZE)
    sections["parallel"] = {"tp": tp}
    sections["cache"]["load"] = "always"
    sections["cache"]["prefetch"] = {"strategy": "wait_complete"}
    sections["cache"]["l2"] |= l2
    return sections


@asynccontextmanager
async def two_engines(
    options: Options, model: ModelConfig, sections: Mapping[str, Any], shared_gpu: bool = False
) -> AsyncIterator[tuple[AsyncLLM, AsyncLLM]]:
    """The one that computes, and the one that finds; both on one GPU, if it is shared."""
    async with dummy_config(options, model, sections) as config, AsyncExitStack() as stack:
        start = start_apart
        if shared_gpu:
            # Ray counts GPUs and looks at none: the host's only one stands for both.
            cluster = await asyncio.to_thread(PrivateCluster, num_gpus=2)
            stack.callback(cluster.stop)
            start = start_on_first_gpu
        holder = await stack.enter_async_context(start(config, engine_name("holder")))
        finder = await stack.enter_async_context(start(config, engine_name("finder")))
        yield holder, finder


@asynccontextmanager
async def start_apart(config: EngineConfig, name: str) -> AsyncIterator[AsyncLLM]:
    """An engine with GPUs of its own."""
    async with await AsyncLLM.start(config, name=name) as llm:
        yield llm


@asynccontextmanager
async def start_on_first_gpu(config: EngineConfig, name: str) -> AsyncIterator[AsyncLLM]:
    """An engine of one rank on the host's first GPU, whichever Ray says."""
    handle = await asyncio.to_thread(start_engine, config, name, build_model=build_on_first_gpu)
    try:
        async with await AsyncLLM.connect(name) as llm:
            yield llm
    finally:
        await handle.shutdown()


def build_on_first_gpu(config: EngineConfig, place: RankPlace) -> LoadedGpuModel:
    """The configured model on the host's first GPU."""
    return build_torch_model(config, replace(place, device_index=0))


class Asker:
    """Draws contexts, and asks engines for a token about each."""

    def __init__(self, sizes: Contexts, vocab_size: int) -> None:
        self._sizes = sizes
        self._prompts = Prompts(vocab_size)

    def draw(self, num: int) -> list[list[int]]:
        """New ones, with a token behind the last page: the last token is always computed."""
        length = self._sizes.context_tokens + self._sizes.new_tokens
        return [self._prompts.draw(length) for _ in range(num)]

    async def warm(self, *llms: AsyncLLM) -> None:
        """Ask each once: what is compiled and allocated at the first time counts for nothing."""
        for llm in llms:
            await ask_each(llm, self.draw(1))

    async def found(self, holder: AsyncLLM, finder: AsyncLLM, source: str) -> list[Answer]:
        """The answers of one engine about what the other has computed, all from `source`."""
        contexts = self.draw(2)
        await ask_each(holder, contexts)
        if source == "peer":
            await until_known(finder, holder)
        return await ask_each(finder, contexts, **{source: self._sizes.context_tokens})
