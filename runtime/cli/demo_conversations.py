"""The conversations of the demo: what is asked, and asking it."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from raydix.runtime.api.sampling_params import OutputKind, SamplingParams
from raydix.runtime.api.tokenizer import Tokenizer

if TYPE_CHECKING:
    from raydix.runtime.api.client import AsyncLLM

OUTPUT_TOKENS = 24
_MAX_CONCURRENT = 4

_SYSTEM = (
    "You are the guide of a small natural history museum. Answer in one short paragraph, name one "
    "exhibit that the visitor can walk to, and stay friendly even if the question is about "
    "dinosaurs for the tenth time today."
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


@dataclass(slots=True)
class Conversation:
    """One chat as token ids, turn after turn."""

    topic: str
    token_ids: list[int] = field(default_factory=list)
    answers: list[range] = field(default_factory=list)
    """The spans of `token_ids` that the engine generated."""

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


def new_conversations() -> list[Conversation]:
    """One about each topic, none of them begun."""
    return [Conversation(topic) for topic in _TOPICS]


async def chat(
    engine: "AsyncLLM",
    tokenizer: Tokenizer,
    conversations: Sequence[Conversation],
    num_turns: int,
    console: Console,
) -> Counter[str]:
    """Take every conversation so many turns further, a few at a time; its prompts by source."""
    sources: Counter[str] = Counter()
    admitted = asyncio.Semaphore(_MAX_CONCURRENT)
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
    return sources
