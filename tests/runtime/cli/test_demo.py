import io
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from raydix.errors import ConfigError
from raydix.runtime.api.outputs import CompletionOutput, RequestMetrics, RequestOutput
from raydix.runtime.api.sampling_params import SamplingParams
from raydix.runtime.api.tokenizer import Tokenizer, load_tokenizer
from raydix.runtime.cli.demo import (
    TURNS_AFTER_RESTART,
    TURNS_BEFORE_RESTART,
    DemoOptions,
    demo_config,
)
from raydix.runtime.cli.demo_checkpoint import write_demo_checkpoint
from raydix.runtime.cli.demo_conversations import Conversation, chat, new_conversations
from raydix.runtime.cli.demo_models import ModelName

RANDOM, SMOLLM2 = ModelName.RANDOM.model, ModelName.SMOLLM2.model
NUM_TURNS = TURNS_BEFORE_RESTART + TURNS_AFTER_RESTART


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """A token for each byte."""
    folder = tmp_path_factory.mktemp("demo")
    write_demo_checkpoint(folder)
    tokenizer = load_tokenizer(folder)
    assert tokenizer is not None
    return tokenizer


class Parrot:
    """An engine that answers every prompt with the same text."""

    def __init__(self, tokenizer: Tokenizer, answer: str) -> None:
        self.params: list[SamplingParams] = []
        self._answer = tokenizer.encode(answer)

    async def generate(
        self, prompt: Mapping[str, Any], params: SamplingParams, session_id: str
    ) -> AsyncIterator[RequestOutput]:
        self.params.append(params)
        token_ids = prompt["prompt_token_ids"]
        yield RequestOutput(
            request_id="parrot",
            prompt=None,
            prompt_token_ids=token_ids,
            outputs=[CompletionOutput(token_ids=list(self._answer), finish_reason="stop")],
            finished=True,
            metrics=RequestMetrics(
                cached_tokens_by_source={"l2": 16, "computed:new": len(token_ids) - 16}
            ),
        )


@pytest.mark.parametrize("model", [RANDOM, SMOLLM2])
def test_each_turn_has_a_question(model: Any) -> None:
    assert len(model.questions) == NUM_TURNS


def test_the_demo_runs_at_least_forty_requests() -> None:
    assert len(RANDOM.topics) * NUM_TURNS >= 40


def test_each_turn_continues_the_token_ids_of_the_last(tokenizer: Tokenizer) -> None:
    conversation = Conversation(RANDOM, tokenizer, "lichens")
    conversation.ask()
    conversation.answer([65, 66])
    before = list(conversation.token_ids)
    conversation.ask()
    assert conversation.token_ids[: len(before)] == before
    assert [conversation.token_ids[i] for i in conversation.answers[0]] == [65, 66]
    assert tokenizer.decode(
        conversation.token_ids[len(before) :], skip_special_tokens=False
    ).startswith("<|im_end|>\n<|im_start|>user")


def test_an_answer_that_ended_by_itself_is_not_ended_twice(tokenizer: Tokenizer) -> None:
    conversation = Conversation(SMOLLM2, tokenizer, "gravity")
    conversation.ask()
    conversation.answer(tokenizer.encode("It pulls.<|im_end|>"))
    conversation.ask()

    text = tokenizer.decode(conversation.token_ids, skip_special_tokens=False)

    assert "It pulls.<|im_end|>\n<|im_start|>user" in text


async def test_what_a_trained_model_says_is_shown_and_recorded(tokenizer: Tokenizer) -> None:
    console = Console(file=io.StringIO(), record=True, width=200)
    conversations = new_conversations(SMOLLM2, tokenizer)
    engine = Parrot(tokenizer, "It [pulls].<|im_end|>")

    sources = await chat(engine, conversations, 2, console)  # type: ignore[arg-type]

    assert sources["l2"] == 16 * 2 * len(SMOLLM2.topics)
    assert not any(params.ignore_eos for params in engine.params)
    question = SMOLLM2.questions[1].format(topic="gravity")
    assert conversations[0].turns()[1] == {"question": question, "answer": "It [pulls]."}
    shown = console.export_text()
    assert "gravity, turn 2 (prompt tokens: 16 l2, " in shown
    assert f"  Question: {question}\n  Answer:   It [pulls].\n" in shown


def test_conversations_fit_the_context_but_not_all_into_l1(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    config = demo_config(DemoOptions(folder=tmp_path), tmp_path)
    conversation = Conversation(RANDOM, tokenizer, "horseshoe crabs")
    for turn in range(NUM_TURNS):
        conversation.ask()
        conversation.answer([turn] * RANDOM.answer_tokens)
    length = len(conversation.token_ids)

    assert config.model.max_model_len is not None
    assert config.cache.l1.num_pages is not None
    assert length < config.model.max_model_len
    held = config.parallel.dp * config.cache.l1.num_pages * config.cache.page_size
    assert len(RANDOM.topics) * length > 1.5 * held


def test_settings_overrule_the_demo(tmp_path: Path) -> None:
    config = demo_config(DemoOptions(folder=tmp_path, sections={"parallel": {"dp": 1}}), tmp_path)
    assert config.parallel.dp == 1
    with pytest.raises(ConfigError, match=r"cache\.l1\.num_pages"):
        demo_config(
            DemoOptions(folder=tmp_path, sections={"cache": {"l1": {"num_page": 1}}}), tmp_path
        )


def test_a_folder_that_cannot_be_written_is_told(
    tmp_path: Path, run: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.touch()

    assert run("demo", "--folder", str(file)) == 1

    assert f"--folder {file} cannot be written" in capsys.readouterr().err
