"""How many tokens a request had, and where those of its prompt came from."""

from collections.abc import Iterable

from raydix.runtime.api.outputs import CompletionOutput, RequestOutput
from raydix.runtime.server.wire.base import WireAnswer


class PromptTokensDetails(WireAnswer):
    """`cached_tokens_by_source` sums to the whole prompt: `l1`, `l2`, `l3`, `computed:REASON`."""

    cached_tokens: int
    cached_tokens_by_source: dict[str, int]


class OutputTokensDetails(WireAnswer):
    """How many tokens of the output were reasoning."""

    reasoning_tokens: int


class Usage(WireAnswer):
    """Tokens of a completion or of a chat completion, over all its choices."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: OutputTokensDetails


class ResponseUsage(WireAnswer):
    """The same under the names of the Responses interface."""

    input_tokens: int
    input_tokens_details: PromptTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class UsageMeter:
    """Owns: the token counts of one HTTP request.

    A prompt counts once however many samples it has: as its first sample found it in the cache.
    """

    def __init__(self, num_samples: int) -> None:
        """`num_samples`: choices per prompt; choice `i` is of prompt `i // num_samples`."""
        self._num_samples = num_samples
        self._prompts: dict[int, RequestOutput] = {}
        self._num_output_tokens = 0
        self._num_reasoning_tokens: dict[int, int] = {}

    def add(self, index: int, output: RequestOutput) -> None:
        """Count what choice `index` brings; each output token must be told once."""
        self.add_tokens(output.outputs[0])
        prompt, sample = divmod(index, self._num_samples)
        if sample == 0:
            self._prompts[prompt] = output

    def add_tokens(self, new: CompletionOutput) -> None:
        """Count an output which is not the last of its choice: that one tells of the prompt."""
        self._num_output_tokens += len(new.token_ids)

    def tell_reasoning(self, index: int, num_tokens: int) -> None:
        """Tell how many of the output tokens of choice `index` were reasoning so far."""
        self._num_reasoning_tokens[index] = num_tokens

    def usage(self) -> Usage:
        """The counts so far."""
        num_prompt_tokens = sum(len(each.prompt_token_ids) for each in self._prompts.values())
        return Usage(
            prompt_tokens=num_prompt_tokens,
            completion_tokens=self._num_output_tokens,
            total_tokens=num_prompt_tokens + self._num_output_tokens,
            prompt_tokens_details=self._details(),
            completion_tokens_details=OutputTokensDetails(
                reasoning_tokens=sum(self._num_reasoning_tokens.values())
            ),
        )

    def response_usage(self) -> ResponseUsage:
        """The counts so far, for the Responses interface."""
        usage = self.usage()
        return ResponseUsage(
            input_tokens=usage.prompt_tokens,
            input_tokens_details=usage.prompt_tokens_details,
            output_tokens=usage.completion_tokens,
            output_tokens_details=usage.completion_tokens_details,
            total_tokens=usage.total_tokens,
        )

    def _details(self) -> PromptTokensDetails:
        by_source = _sums(each.metrics.cached_tokens_by_source for each in self._prompts.values())
        num_cached = sum(each.num_cached_tokens for each in self._prompts.values())
        return PromptTokensDetails(cached_tokens=num_cached, cached_tokens_by_source=by_source)


def _sums(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    sums: dict[str, int] = {}
    for each in counts:
        for name, count in each.items():
            sums[name] = sums.get(name, 0) + count
    return sums
