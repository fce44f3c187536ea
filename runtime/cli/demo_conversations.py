"""The conversations of the demo: asking what its model is asked, and showing what it says."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from raydix.runtime.api.sampling_params import OutputKind, SamplingParams
from raydix.runtime.api.tokenizer import Tokenizer
from raydix.runtime.cli.demo_models import DemoModel
from raydix.runtime.cli.source_table import by_tier

if TYPE_CHECKING:
    from raydix.runtime.api.client import AsyncLLM

_MAX_CONCURRENT = 4
_END = "<|im_end|>"


@dataclass(slots=True)
class Conversation:
    """One chat as token ids, turn after turn."""

    model: DemoModel
    tokenizer: Tokenizer
    topic: str
    token_ids: list[int] = field(default_factory=list)
    answers: list[range] = field(default_factory=list)
    """The spans of `token_ids` that the engine generated."""

    def ask(self) -> None:
        """Append the next question."""
        question = self.question(len(self.answers))
        if not self.token_ids:
            messages = [
                {"role": "system", "content": self.model.system},
                {"role": "user", "content": question},
            ]
            self.token_ids += self.tokenizer.encode_chat(messages)
            return

        # An answer that ended by itself has this token already.
        end = self.tokenizer.encode(_END)
        if self.token_ids[-1:] != end:
            self.token_ids += end
        turn = f"\n<|im_start|>user\n{question}{_END}\n<|im_start|>assistant\n"
        self.token_ids += self.tokenizer.encode(turn)

    def answer(self, token_ids: Sequence[int]) -> None:
        """Append what the engine said."""
        self.answers.append(range(len(self.token_ids), len(self.token_ids) + len(token_ids)))
        self.token_ids += token_ids

    def question(self, turn: int) -> str:
        """What is asked in a turn, counted from 0."""
        return self.model.questions[turn].format(topic=self.topic)

    def turns(self) -> list[dict[str, str]]:
        """What was said so far: the `question` and the `answer` of each turn."""
        return [
            {
                "question": self.question(turn),
                "answer": self.tokenizer.decode(
                    self.token_ids[span.start : span.stop], skip_special_tokens=True
                ),
            }
            for turn, span in enumerate(self.answers)
        ]


def new_conversations(model: DemoModel, tokenizer: Tokenizer) -> list[Conversation]:
    """One about each topic, none of them begun."""
    return [Conversation(model, tokenizer, topic) for topic in model.topics]


async def chat(
    engine: "AsyncLLM",
    conversations: Sequence[Conversation],
    num_turns: int,
    console: Console,
) -> Counter[str]:
    """Take every conversation so many turns further, a few at a time; its prompts by source."""
    sources: Counter[str] = Counter()
    admitted = asyncio.Semaphore(_MAX_CONCURRENT)

    async def take_turn(conversation: Conversation) -> None:
        async with admitted:
            sources_of_turn = await _take_turn(engine, conversation)
        sources.update(sources_of_turn)
        if conversation.model.is_trained:
            console.print(_shown(conversation, sources_of_turn))
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


async def _take_turn(engine: "AsyncLLM", conversation: Conversation) -> Mapping[str, int]:
    """Ask, and append the answer; the prompt's tokens by source."""
    params = SamplingParams(
        temperature=0.0,
        max_tokens=conversation.model.answer_tokens,
        ignore_eos=not conversation.model.is_trained,
        output_kind=OutputKind.FINAL,
        detokenize=False,
    )
    conversation.ask()
    prompt = {"prompt_token_ids": list(conversation.token_ids)}
    (output,) = [
        output async for output in engine.generate(prompt, params, session_id=conversation.topic)
    ]
    conversation.answer(output.outputs[0].token_ids)
    return output.metrics.cached_tokens_by_source


def _shown(conversation: Conversation, sources: Mapping[str, int]) -> Text:
    """The last turn for people, and where its prompt came from."""
    *_, turn = conversation.turns()
    tiers = ", ".join(f"{n} {tier}" for tier, n in by_tier(sources).items() if n)
    return Text.assemble(
        (f"{conversation.topic}, turn {len(conversation.answers)}", "bold"),
        (f" (prompt tokens: {tiers})\n", "dim"),
        f"  Question: {turn['question']}\n  Answer:   {turn['answer']}",
    )
