"""Prompts from the command line and from files."""

import json
from collections.abc import Sequence
from pathlib import Path

from raydix.errors import BadRequest
from raydix.runtime.api.prompts import Prompt


def read_prompts(prompts: Sequence[str], path: Path | None) -> list[Prompt]:
    """The given prompts, then those of the file. Raises BadRequest if there is none."""
    found: list[Prompt] = list(prompts)
    if path is not None:
        found += read_prompt_file(path, "--prompts-file")
    if not found:
        raise BadRequest("There is no prompt. Give --prompt TEXT or --prompts-file FILE.")
    return found


def read_prompt_file(path: Path, option: str) -> list[Prompt]:
    """A prompt per line that is not blank, as JSON if the file's name ends in .jsonl.

    Raises BadRequest, which names `option`, if the file cannot be read.
    """
    try:
        lines = [line for line in path.read_text().splitlines() if line.strip()]
        return [json.loads(line) for line in lines] if path.suffix == ".jsonl" else list(lines)
    except (OSError, ValueError) as error:
        raise BadRequest(f"{option} {path}: {error}") from None
