"""What a client receives, in vLLM's shape."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

from raydix.ids import RequestId


@dataclass(frozen=True, slots=True)
class Logprob:
    """Natural log-probability of one token at one position, from raw logits."""

    logprob: float
    rank: int
    """1 for the likeliest token."""
    decoded_token: str | None = None
    token_bytes: bytes | None = field(default=None, compare=False)
    """The token's own, which may be part of a character; None without a tokenizer."""


PromptEntry = dict[int, Logprob] | None
"""Token ids at one place of a prompt; None for the first, before which nothing is."""


@dataclass(slots=True, kw_only=True)
class CompletionOutput:
    """One generated sequence.

    `token_ids` includes an EOS or stop token that ended it; `text` excludes that token's text and
    the stop string unless `include_stop_str_in_output`. `logprobs` has one dict per token: token id
    to Logprob.
    """

    index: int = 0
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    cumulative_logprob: float | None = None
    """Sum over the sampled tokens that this output holds; None without `logprobs`."""
    logprobs: list[dict[int, Logprob]] | None = None
    text_offsets: list[int] | None = None
    """Where the text of each token begins in that of the whole output, in characters; None without
    `logprobs` or without text. It ends where the next one's begins. A token within a character has
    none, and the one that completes the character has all of it; what is not shown has none."""
    finish_reason: str | None = None
    """`stop`, `length` or `abort`; None while it runs."""
    stop_reason: int | str | None = None
    """The stop id or stop string that ended it; None for EOS and for the other reasons."""

    def token_texts(self) -> list[str] | None:
        """The text of each token by `text_offsets`: joined, they are `text`."""
        if self.text_offsets is None:
            return None
        # What is new of an output begins with the text of its first token.
        base = self.text_offsets[0] if self.text_offsets else 0
        places = [each - base for each in self.text_offsets] + [len(self.text)]
        return [self.text[start:end] for start, end in itertools.pairwise(places)]

    @property
    def is_finished(self) -> bool:
        """No token follows."""
        return self.finish_reason is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestMetrics:
    """Figures of one request, None while not known; durations are by the client's clock."""

    cached_tokens_by_source: dict[str, int] = field(default_factory=dict)
    """Prompt tokens by `l1`, `l2`, `l3` and `computed:REASON`; they sum to the whole prompt."""
    queued_s: float | None = None
    """Arrival at the Scheduler to first admission, by the Scheduler's clock."""
    time_to_first_token_s: float | None = None
    latency_s: float | None = None
    """Submission to the last token."""
    num_output_tokens: int = 0


@dataclass(slots=True, kw_only=True)
class RequestOutput:
    """One request's output: cumulative, new or final, as its `output_kind` says."""

    request_id: RequestId
    prompt: str | None
    """The prompt's text; None where the caller gave token ids."""
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    """True for exactly one output of a request, its last."""
    metrics: RequestMetrics
    prompt_logprobs: Sequence[PromptEntry] | None = None
    """With `prompt_logprobs`: one dict per token of the prompt, token id to Logprob, but None for
    the first. Under `output_kind="delta"` the first output has them, and later ones None."""
    num_cached_tokens: int = 0
    """Prompt tokens that were not computed: the sum of `l1`, `l2` and `l3`."""
