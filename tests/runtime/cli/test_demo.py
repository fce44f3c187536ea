from collections.abc import Callable
from pathlib import Path

import pytest

from raydix.errors import ConfigError
from raydix.runtime.api.tokenizer import Tokenizer, load_tokenizer
from raydix.runtime.cli.demo import (
    TURNS_AFTER_RESTART,
    TURNS_BEFORE_RESTART,
    DemoOptions,
    demo_config,
)
from raydix.runtime.cli.demo_checkpoint import write_demo_checkpoint
from raydix.runtime.cli.demo_conversations import OUTPUT_TOKENS, Conversation, new_conversations

NUM_CONVERSATIONS = len(new_conversations())


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("demo")
    write_demo_checkpoint(folder)
    tokenizer = load_tokenizer(folder)
    assert tokenizer is not None
    return tokenizer


def finished_conversation(tokenizer: Tokenizer) -> Conversation:
    conversation = Conversation("horseshoe crabs")
    for turn in range(TURNS_BEFORE_RESTART + TURNS_AFTER_RESTART):
        conversation.ask(tokenizer)
        conversation.answer([turn] * OUTPUT_TOKENS)
    return conversation


def test_the_demo_runs_at_least_forty_requests() -> None:
    assert NUM_CONVERSATIONS * (TURNS_BEFORE_RESTART + TURNS_AFTER_RESTART) >= 40


def test_each_turn_continues_the_token_ids_of_the_last(tokenizer: Tokenizer) -> None:
    conversation = Conversation("lichens")
    conversation.ask(tokenizer)
    conversation.answer([65, 66])
    before = list(conversation.token_ids)
    conversation.ask(tokenizer)
    assert conversation.token_ids[: len(before)] == before
    assert [conversation.token_ids[i] for i in conversation.answers[0]] == [65, 66]
    assert tokenizer.decode(
        conversation.token_ids[len(before) :], skip_special_tokens=False
    ).startswith("<|im_end|>")


def test_conversations_fit_the_context_but_not_all_into_l1(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    config = demo_config(DemoOptions(folder=tmp_path))
    length = len(finished_conversation(tokenizer).token_ids)
    assert config.model.max_model_len is not None
    assert config.cache.l1.num_pages is not None
    assert length < config.model.max_model_len
    held = config.parallel.dp * config.cache.l1.num_pages * config.cache.page_size
    assert NUM_CONVERSATIONS * length > 1.5 * held


def test_settings_overrule_the_demo(tmp_path: Path) -> None:
    config = demo_config(DemoOptions(folder=tmp_path, sections={"parallel": {"dp": 1}}))
    assert config.parallel.dp == 1
    with pytest.raises(ConfigError, match=r"cache\.l1\.num_pages"):
        demo_config(DemoOptions(folder=tmp_path, sections={"cache": {"l1": {"num_page": 1}}}))


def test_a_folder_that_cannot_be_written_is_told(
    tmp_path: Path, run: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.touch()

    assert run("demo", "--folder", str(file)) == 1

    assert f"--folder {file} cannot be written" in capsys.readouterr().err
