"""What tells the tokenizers of two checkpoints apart."""

import shutil
from pathlib import Path

from raydix.runtime.actors.supervision.tokenizer_files import tokenizer_digest


def checkpoint(folder: Path) -> Path:
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json"):
        (folder / name).write_text("{}")
    return folder


def test_copies_of_a_checkpoint_have_one_tokenizer(tmp_path: Path) -> None:
    first = checkpoint(tmp_path / "first")
    second = shutil.copytree(first, tmp_path / "second")
    (second / "config.json").write_text('{"max_position_embeddings": 1}')
    (second / "model.safetensors").write_bytes(b"weights")
    assert tokenizer_digest(str(first)) == tokenizer_digest(str(second))


def test_another_chat_template_is_another_tokenizer(tmp_path: Path) -> None:
    first = checkpoint(tmp_path / "first")
    before = tokenizer_digest(str(first))
    (first / "chat_template.jinja").write_text("{{ messages }}")
    assert tokenizer_digest(str(first)) != before
