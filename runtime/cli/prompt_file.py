"""Prompts from the command line and from files."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from raydix.errors import BadRequest
from raydix.runtime.api.prompts import Prompt, read_prompt


@dataclass(frozen=True, slots=True)
class FilePrompt:
    """A prompt of a file."""

    prompt: Prompt
    place: str
    """The option, the file and the line, for messages."""


def read_prompts(prompts: Sequence[str], path: Path | None) -> list[Prompt]:
    """The given prompts, then those of the file. Raises BadRequest if there is none."""
    found: list[Prompt] = list(prompts)
    if path is not None:
        found += [each.prompt for each in read_prompt_file(path, "--prompts-file")]
    if not found:
        raise BadRequest("There is no prompt. Give --prompt TEXT or --prompts-file FILE.")
    return found


def read_prompt_file(path: Path, option: str) -> list[FilePrompt]:
    """A prompt per line that is not blank, as JSON if the file's name ends in .jsonl.

    Lines end at a line feed, perhaps with a carriage return before it: other characters that
    Unicode takes for a line's end, such as U+2028, stand raw in JSON strings. A byte order mark is
    none of the first prompt.

    Raises BadRequest, which names `option`, if the file cannot be read, and the line, if that is
    no prompt.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except OSError as error:
        raise BadRequest(f"{option} {path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError as error:
        raise BadRequest(f"{option} {path} is no UTF-8 text: {error}.") from None

    prompts: list[FilePrompt] = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            place = f"{option} {path}, line {number}"
            is_json = path.suffix == ".jsonl"
            prompts.append(FilePrompt(_parse(line, place) if is_json else line, place))
    return prompts


def _parse(line: str, place: str) -> Prompt:
    try:
        prompt: Prompt = json.loads(line)
    except json.JSONDecodeError as error:
        raise BadRequest(
            f"{place} is no JSON from character {error.pos + 1} on ({error.msg}); expected a text "
            "in quotes, token ids or an object."
        ) from None
    try:
        read_prompt(prompt)
    except BadRequest as error:
        raise BadRequest(f"{place}: {error}") from error
    return prompt
