"""How `raydix generate` prints answers: for people, or a line of JSON each."""

import sys
from typing import Any, Protocol, TextIO

from raydix.errors import RaydixError
from raydix.runtime.api.outputs import RequestOutput
from raydix.runtime.cli.output import print_json


class Printer(Protocol):
    """Prints what becomes of each prompt, in the order of the prompts."""

    def answer(self, output: RequestOutput) -> None:
        """Print a whole answer."""

    def piece(self, output: RequestOutput) -> None:
        """Print what is new of an answer that is still coming, or its end."""

    def failure(self, index: int, error: RaydixError) -> None:
        """There is no answer, or not all of it. Nobody else tells it."""


class TextPrinter:
    """A `Printer` of text, or of token ids without a tokenizer; failures go to standard error."""

    def __init__(self, stdout: TextIO, *, has_tokenizer: bool, num_prompts: int) -> None:
        self._stdout = stdout
        self._has_tokenizer = has_tokenizer
        self._num_prompts = num_prompts

    def answer(self, output: RequestOutput) -> None:
        """Print the text, or the token ids of a model without a tokenizer."""
        completion = output.outputs[0]
        shown = completion.text if self._has_tokenizer else list(completion.token_ids)
        # Not by a console, which would break lines at its edge and drop control characters.
        print(shown, file=self._stdout, flush=True)

    def piece(self, output: RequestOutput) -> None:
        """Write the piece behind those before it, on the same line."""
        completion = output.outputs[0]
        # A piece may have tokens and no text yet: those of a part of a character.
        ids = "".join(f"{token_id} " for token_id in completion.token_ids)
        self._stdout.write(completion.text if self._has_tokenizer else ids)
        if output.finished:
            self._stdout.write("\n")
        self._stdout.flush()

    def failure(self, index: int, error: RaydixError) -> None:
        """Print the error to stderr, with the prompt's number if there are several."""
        place = f"prompt {index}: " if self._num_prompts > 1 else ""
        print(f"{place}{type(error).__name__}: {error}", file=sys.stderr)


class JsonPrinter:
    """A `Printer` of one line of JSON for each answer or piece, and for each failure."""

    def __init__(self, stdout: TextIO) -> None:
        self._stdout = stdout

    def answer(self, output: RequestOutput) -> None:
        """Print the answer as one JSON object, with where its prompt's tokens came from."""
        sources = output.metrics.cached_tokens_by_source
        record = {**_piece_of(output), "num_prompt_tokens": len(output.prompt_token_ids)}
        print_json({**record, "cached_tokens_by_source": sources}, self._stdout)

    def piece(self, output: RequestOutput) -> None:
        """Print the piece as one JSON object."""
        if output.finished:
            self.answer(output)
        else:
            print_json(_piece_of(output), self._stdout)

    def failure(self, index: int, error: RaydixError) -> None:
        """Print the error as one JSON object."""
        record = {"prompt": index, "error": type(error).__name__, "message": str(error)}
        print_json(record, self._stdout)


def _piece_of(output: RequestOutput) -> dict[str, Any]:
    completion = output.outputs[0]
    return {
        "request_id": output.request_id,
        "text": completion.text,
        "token_ids": list(completion.token_ids),
        "finish_reason": completion.finish_reason,
    }
