"""`raydix demo`: chat through all three tiers, restart the engine, and go on with the same
conversations.
"""

import asyncio
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from raydix.errors import ConfigError
from raydix.runtime.api.client import AsyncLLM
from raydix.runtime.api.sampling_params import OutputKind, SamplingParams
from raydix.runtime.api.tokenizer import Tokenizer, load_tokenizer
from raydix.runtime.cli.demo_checkpoint import write_demo_checkpoint
from raydix.runtime.cli.source_table import TIERS, by_tier, source_table
from raydix.runtime.cli.stop_signal import until_stopped
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.config.loading import load_config

NUM_CONVERSATIONS = 12
TURNS_BEFORE_RESTART = 3
TURNS_AFTER_RESTART = 2
MAX_CONCURRENT = 4
OUTPUT_TOKENS = 24

_SYSTEM = (
    "You are the guide of a small natural history museum. Answer in one short paragraph, name one "
    "exhibit that the "
    "visitor can walk to, and stay friendly even if the question is about dinosaurs for the tenth "
    "time today."
)
_TOPICS = (
    "ammonites", "basalt", "cave bears", "diatoms", "eclipses", "feathers",
    "glaciers", "horseshoe crabs", "iridium", "jellyfish", "kelp forests", "lichens",
)  # fmt: skip
_QUESTIONS = (
    "I have ten minutes. What should I know about {topic}?",
    "Which of the things that you said about {topic} would surprise a child most?",
    "And how do we know that about {topic}? I would like to see the evidence.",
    "My train leaves soon: say again in a few words why {topic} matter.",
    "Thank you. Where can I read more about {topic} at home?",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """`folder` holds the checkpoint (made there if absent) and L3; `sections` overrule the demo's
    configuration.
    """

    folder: Path
    sections: Mapping[str, Any] = field(default_factory=dict)
    verify: bool = False
    hold: bool = False


@dataclass(slots=True)
class Conversation:
    """One chat as token ids, turn after turn. `answers` are the spans of `token_ids` that the
    engine generated.
    """

    topic: str
    token_ids: list[int] = field(default_factory=list)
    answers: list[range] = field(default_factory=list)

    def ask(self, tokenizer: Tokenizer) -> None:
        """Append the next question."""
        question = _QUESTIONS[len(self.answers)].format(topic=self.topic)
        if not self.token_ids:
            messages = [
                {"role": "system", "content": _SYSTEM},
                {"role": "user", "content": question},
            ]
            self.token_ids += tokenizer.encode_chat(messages)
        else:
            turn = f"<|im_end|>\n<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
            self.token_ids += tokenizer.encode(turn)

    def answer(self, token_ids: Sequence[int]) -> None:
        """Append what the engine said."""
        self.answers.append(range(len(self.token_ids), len(self.token_ids) + len(token_ids)))
        self.token_ids += token_ids


async def run_demo(options: DemoOptions, console: Console) -> dict[str, Any]:
    """Run it all, show progress and the table on `console`, and return the record; `passed` says
    whether it worked.
    """
    started_s = time.monotonic()
    checkpoint = options.folder / "checkpoint"
    if not (checkpoint / "config.json").is_file():
        write_demo_checkpoint(checkpoint)
    config = demo_config(options)
    tokenizer = await asyncio.to_thread(_load_tokenizer, checkpoint)
    conversations = [Conversation(topic) for topic in _TOPICS[:NUM_CONVERSATIONS]]
    columns = {"first engine": Counter[str](), "after the restart": Counter[str]()}
    record: dict[str, Any] = {
        "name": "demo",
        "unit": "prompt tokens",
        "config": config.model_dump(),
    }
    plan = zip(
        columns.items(),
        (TURNS_BEFORE_RESTART, TURNS_AFTER_RESTART),
        (False, options.hold),
        strict=True,
    )
    for (title, sources), num_turns, hold in plan:
        console.print(f"Starting the engine ({title}) ...")
        engine = await AsyncLLM.start(config, name=f"demo-{os.getpid()}")
        try:
            await _chat(engine, tokenizer, conversations, num_turns, sources, console)
            if hold:
                console.print(f"Holding the engine demo-{os.getpid()}; end it with Ctrl-C.")
                await until_stopped()
        finally:
            await engine.shutdown()
    total = columns["first engine"] + columns["after the restart"]
    record["value"] = by_tier(total)
    record["by_phase"] = {title: dict(sources) for title, sources in columns.items()}
    record["num_requests"] = sum(len(conversation.answers) for conversation in conversations)
    record["serve_s"] = round(time.monotonic() - started_s, 2)
    console.print(source_table({**columns, "both": total}))
    empty_tiers = [tier for tier in TIERS if not record["value"][tier]]
    for tier in empty_tiers:
        console.print(f"No prompt token came from {tier.upper()}.", style="red")
    record["passed"] = not empty_tiers
    if options.verify:
        await _verify(checkpoint, conversations, record, console)
    record["total_s"] = round(time.monotonic() - started_s, 2)
    return record


def demo_config(options: DemoOptions) -> EngineConfig:
    """Two ranks whose L1 is too small for all conversations, an ample L2, and L3 in files."""
    config = {
        "model": {
            "path": str(options.folder / "checkpoint"),
            "device": "cpu",
            "dtype": "float32",
            "max_model_len": 1280,
        },
        "parallel": {"dp": 2},
        "cache": {
            "page_size": 16,
            "l1": {"num_pages": 96},
            "l2": {"bytes_per_node": "64MiB"},
            "l3": {"backend": "file", "path": str(options.folder / "l3"), "max_bytes": "1GiB"},
            "load": "always",
            # The second engine reads everything from files: an impatient request would compute
            # instead.
            "prefetch": {"strategy": "wait_complete"},
        },
        "scheduler": {"max_running_requests": 8, "chunked_prefill_tokens": 256},
    }
    return load_config(config, options.sections)


def _load_tokenizer(checkpoint: Path) -> Tokenizer:
    tokenizer = load_tokenizer(checkpoint)
    if tokenizer is None:
        raise ConfigError(
            f"{checkpoint} has no tokenizer; the demo chats as text. Choose an empty --folder."
        )
    return tokenizer


async def _chat(
    engine: AsyncLLM,
    tokenizer: Tokenizer,
    conversations: Sequence[Conversation],
    num_turns: int,
    sources: Counter[str],
    console: Console,
) -> None:
    """Take every conversation `num_turns` turns further, a few at a time, and add up where their
    prompts came from.
    """
    admitted = asyncio.Semaphore(MAX_CONCURRENT)
    params = SamplingParams(
        temperature=0.0,
        max_tokens=OUTPUT_TOKENS,
        ignore_eos=True,
        output_kind=OutputKind.FINAL,
        detokenize=False,
    )

    async def take_turn(conversation: Conversation) -> None:
        async with admitted:
            conversation.ask(tokenizer)
            prompt = {"prompt_token_ids": list(conversation.token_ids)}
            async for output in engine.generate(prompt, params, session_id=conversation.topic):
                if output.finished:
                    conversation.answer(output.outputs[0].token_ids)
                    sources.update(output.metrics.cached_tokens_by_source)
            bar.advance(task)

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("chatting", total=num_turns * len(conversations))
        for _ in range(num_turns):
            async with asyncio.TaskGroup() as group:
                for conversation in conversations:
                    group.create_task(take_turn(conversation))


async def _verify(
    checkpoint: Path,
    conversations: Sequence[Conversation],
    record: dict[str, Any],
    console: Console,
) -> None:
    # Imports torch, which the driver of a run without --verify never does.
    from raydix.runtime.cli.demo_verify import compare_with_transformers

    console.print("Comparing every generated token with transformers ...")
    answers = [(conversation.token_ids, conversation.answers) for conversation in conversations]
    verdict = await asyncio.to_thread(compare_with_transformers, checkpoint, answers)
    console.print(
        f"{verdict.num_tokens} tokens compared: {len(verdict.differences)} differences, "
        f"{verdict.num_near_ties} near ties."
    )
    for line in verdict.differences[:10]:
        console.print(line, style="red")
    record["verify"] = {
        "tokens": verdict.num_tokens,
        "near_ties": verdict.num_near_ties,
        "differences": len(verdict.differences),
    }
    record["passed"] = record["passed"] and not verdict.differences
