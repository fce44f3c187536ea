from pathlib import Path

import pytest
import torch
import transformers

from raydix.runtime.cli.demo_checkpoint import MAX_POSITIONS, write_demo_checkpoint


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo") / "checkpoint"
    write_demo_checkpoint(folder)
    return folder


def test_transformers_loads_every_weight(folder: Path) -> None:
    model, report = transformers.AutoModelForCausalLM.from_pretrained(
        folder, output_loading_info=True
    )
    assert type(model).__name__ == "Qwen3MoeForCausalLM"
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    logits_TV = model(torch.arange(20)[None]).logits[0]
    assert torch.isfinite(logits_TV).all()
    assert len(set(logits_TV.argmax(-1).tolist())) > 10


def test_the_tokenizer_is_byte_level_and_reversible(folder: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    text = "Grüße, 世界! 🙂\n\ttabs  and  spaces"
    token_ids = tokenizer.encode(text)
    assert len(token_ids) == len(text.encode())
    assert tokenizer.decode(token_ids) == text
    assert tokenizer.model_max_length == MAX_POSITIONS


def test_the_chat_template_marks_each_turn(folder: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], tokenize=False, add_generation_prompt=True
    )
    assert text == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    token_ids = tokenizer.encode(text)
    assert token_ids[0] == tokenizer.convert_tokens_to_ids("<|im_start|>")
    assert tokenizer.eos_token_id in token_ids


def test_the_same_seed_gives_the_same_files(folder: Path, tmp_path: Path) -> None:
    write_demo_checkpoint(tmp_path)
    for path in folder.iterdir():
        assert (tmp_path / path.name).read_bytes() == path.read_bytes()
