"""The files of a checkpoint that make its tokenizer, for clients that cannot read its folder."""

import hashlib
from pathlib import Path

from raydix.errors import CheckpointError
from raydix.runtime.model.checkpoint.hub import settings_folder

_CONFIG = "config.json"
_PATTERNS = (
    *("tokenizer*.json", "tokenizer.model", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.*", "merges.txt", "*.tiktoken", "chat_template.*", _CONFIG),
)
_MAX_BYTES = 128 << 20
"""The most bytes of all files together; what is larger is no tokenizer."""


def read_tokenizer_files(model_path: str) -> dict[str, bytes]:
    """Names and contents. Raises CheckpointError if there is too much, or no such model."""
    folder = settings_folder(model_path)
    paths = _paths_in(folder)
    num_bytes = sum(path.stat().st_size for path in paths)
    if num_bytes > _MAX_BYTES:
        raise CheckpointError(
            f"The tokenizer's files in {folder} have {num_bytes} bytes; at most {_MAX_BYTES} are "
            "sent to clients. Use token ids on other hosts."
        )
    return {path.name: path.read_bytes() for path in paths}


def tokenizer_digest(model_path: str) -> str:
    """A digest that equal tokenizers and chat templates have, in hexadecimal.

    Raises CheckpointError if there is no such model. What else `config.json` says has no part in
    it: that is in the fingerprint, as far as it matters.
    """
    digest = hashlib.blake2b(digest_size=16)
    for path in _paths_in(settings_folder(model_path)):
        if path.name != _CONFIG:
            digest.update(path.name.encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _paths_in(folder: Path) -> list[Path]:
    found = {path for pattern in _PATTERNS for path in folder.glob(pattern) if path.is_file()}
    return sorted(found)
