"""Measure what it costs to enforce the form of answers.

    python -m benchmarks.structured

A mixture-of-experts model of random weights decodes batches of requests, each of which has a JSON
schema of its own, beside the same requests without: rounds of the two, and of mixed batches, of
which every second request has one, alternate. The time per token is that of the steady batch, of
the first stream. In mixed batches that one is free.

The schemas are lists that are longer than what is generated, so that no request ends before.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from benchmarks.engine.engines import (
    GREEDY,
    MOE_L12,
    MOE_TINY,
    Answer,
    Options,
    Prompts,
    ask,
    dummy_config,
    engine_name,
    parse_options,
    settle,
    steady_tpot_ms,
)
from benchmarks.engine.workloads import FULL_BATCHES, TINY_BATCHES, Batches
from benchmarks.model.model_shapes import ModelConfig
from benchmarks.records.command_line import run
from benchmarks.records.record import Figure
from raydix.runtime.api.client import AsyncLLM
from raydix.runtime.api.sampling_params import OutputKind, SamplingParams

MAX_FORMED_RATIO = 1.08
MAX_MIXED_RATIO = 1.02
MAX_NEW_SCHEMA_MS = 150.0
SAMPLED = SamplingParams(temperature=1.0, seed=1)
_END = "<|end|>"


def write_tokenizer(folder: Path, vocab_size: int) -> None:
    """All bytes, an end, and made-up words, as large vocabularies have them."""
    names = sorted(pre_tokenizers.ByteLevel.alphabet())
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = (f"{begin}{word}" for word in _words(letters) for begin in ("", "Ġ", '"', "Ċ"))
    known = dict.fromkeys([*names, _END])
    while len(known) < vocab_size:
        known[next(words)] = None
    vocabulary = {name: number for number, name in enumerate([*known][:vocab_size])}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=_END).save_pretrained(folder)


def _words(letters: str) -> Iterator[str]:
    for number in count(len(letters)):
        word = ""
        while number:
            number, place = divmod(number, len(letters))
            word += letters[place]
        yield word


class Schemas:
    """Schemas, no two of which are equal."""

    def __init__(self) -> None:
        self._numbers = count()

    def draw(self) -> dict[str, Any]:
        """A schema that no earlier draw had."""
        number = next(self._numbers)
        item = {
            "type": "object",
            "properties": {
                f"name_{number}": {"type": "string"},
                "age": {"type": "integer", "minimum": 0, "maximum": 150},
                "kind": {"enum": ["cat", "dog", "bird"]},
                "tags": {"type": "array", "items": {"type": "string"}},
            },
            "required": [f"name_{number}", "age", "kind", "tags"],
            "additionalProperties": False,
        }
        return {"type": "array", "items": item, "minItems": 4000}

    def sampling(self) -> SamplingParams:
        """Parameters with a schema of their own."""
        return SamplingParams(temperature=1.0, seed=1, structured_outputs={"json": self.draw()})


@asynccontextmanager
async def engine(
    options: Options, model: ModelConfig, sections: Mapping[str, Any]
) -> AsyncIterator[AsyncLLM]:
    """An engine with a tokenizer."""
    end_id = len(pre_tokenizers.ByteLevel.alphabet())
    async with dummy_config(options, {**model, "eos_token_id": end_id}, sections) as config:
        write_tokenizer(Path(str(config.model.path)), int(model["vocab_size"]))
        async with await AsyncLLM.start(config, name=engine_name("structured")) as llm:
            yield llm


async def ask_all(
    llm: AsyncLLM, prompts: list[list[int]], num_tokens: int, samplings: list[SamplingParams]
) -> list[Answer]:
    """Ask all at once; the first is read token by token."""
    kinds = [OutputKind.DELTA] + [OutputKind.FINAL] * (len(prompts) - 1)
    asking = [
        ask(llm.generate, prompt, num_tokens, kind, sampling)
        for prompt, kind, sampling in zip(prompts, kinds, samplings, strict=True)
    ]
    return list(await asyncio.gather(*asking))


async def measure(
    options: Options, sizes: Batches, model: ModelConfig, batches: tuple[int, ...]
) -> list[Figure]:
    """Medians over `repeats` rounds of each batch size, after one that warms up."""
    prompts, schemas = Prompts(int(model["vocab_size"])), Schemas()
    figures: list[Figure] = []
    async with engine(options, model, sizes.sections(sizes.output_tokens)) as llm:
        for batch in batches:
            times = await _play(llm, options, sizes, prompts, schemas, batch)
            free_ms = median(times["free"])
            figures.append(
                Figure(
                    name=f"TPOT with a schema per row over free, batch {batch}",
                    value=median(times["formed"]) / free_ms,
                    unit="1",
                    max_value=options.bar(MAX_FORMED_RATIO),
                )
            )
            figures.append(Figure(name=f"TPOT, free, batch {batch}", value=free_ms, unit="ms"))
            if batch > 1:
                figures.append(
                    Figure(
                        name=f"TPOT of free rows in mixed batches over free, batch {batch}",
                        value=median(times["mixed"]) / free_ms,
                        unit="1",
                        max_value=options.bar(MAX_MIXED_RATIO),
                    )
                )
        figures.append(await _first_token(llm, options, sizes, prompts, schemas))
    return figures


async def _play(
    llm: AsyncLLM,
    options: Options,
    sizes: Batches,
    prompts: Prompts,
    schemas: Schemas,
    batch: int,
) -> dict[str, list[float]]:
    """The time per token of each round, in milliseconds, by what the rows have."""
    times: dict[str, list[float]] = {"free": [], "formed": [], "mixed": []}
    for number in range(1 + options.repeats):
        for name, own in times.items():
            formed = [name == "formed" or (name == "mixed" and i % 2 == 1) for i in range(batch)]
            samplings = [schemas.sampling() if each else SAMPLED for each in formed]
            drawn = [prompts.draw(sizes.prompt_tokens) for _ in range(batch)]
            if name != "free":
                # The steady batch is measured, not how long schemas take to compile.
                await ask_all(llm, drawn, 1, samplings)
            answers = await ask_all(llm, drawn, sizes.output_tokens, samplings)
            if number:
                own.append(steady_tpot_ms(answers))
            await settle(llm.stats)
    return times


async def _first_token(
    llm: AsyncLLM, options: Options, sizes: Batches, prompts: Prompts, schemas: Schemas
) -> Figure:
    """What a schema that nobody has asked for adds to the time to the first token."""
    times: dict[str, list[float]] = {"free": [], "new": []}
    for _ in range(1 + options.repeats):
        for name, own in times.items():
            sampling = GREEDY if name == "free" else schemas.sampling()
            prompt = prompts.draw(sizes.prompt_tokens)
            own.append((await ask(llm.generate, prompt, 2, sampling=sampling)).ttft_ms)
            await settle(llm.stats)
    free_ms = median(times["free"][1:])
    return Figure(
        name="first token with a new schema, beyond that without",
        value=median(times["new"][1:]) - free_ms,
        unit="ms",
        max_value=options.bar(MAX_NEW_SCHEMA_MS),
        baseline=free_ms,
        baseline_name="TTFT, free",
    )


def main(options: Options) -> int:
    """Measure and report."""
    sizes, model, batches = (
        (TINY_BATCHES, {**MOE_TINY, "vocab_size": 400}, (1, 4))
        if options.is_tiny
        else (FULL_BATCHES, MOE_L12, (1, 32, 128))
    )
    figures = asyncio.run(measure(options, sizes, model, batches))
    config = {"model": "moe_l12", "output_tokens": sizes.output_tokens}
    return options.report("structured", {**config, "schema": json.dumps(Schemas().draw())}, figures)


if __name__ == "__main__":
    run(lambda: main(parse_options(__doc__)))
