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
    """The token's rank among all tokens at its place; 1 for the likeliest."""
    decoded_token: str | None = None
    token_bytes: bytes | None = field(default=None, compare=False)
    """The bytes of the token, which may be part of a character; None without a tokenizer."""


PromptEntry = dict[int, Logprob] | None
"""The logprobs at one place of a prompt, by token id; None for the prompt's first token."""


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
    """The sum over the sampled tokens that this output holds; None without `logprobs`."""
    logprobs: list[dict[int, Logprob]] | None = None
    text_offsets: list[int] | None = None
    """The index, in characters, at which each token's text begins in the text of the whole output;
    None without `logprobs` or without text. A token's text ends where the next one's begins. A
    token within a character has none, and the token that completes it has all of it; what is not
    shown has none.
    """
    finish_reason: str | None = None
    """The reason why the output ended: `stop`, `length` or `abort`; None while it runs."""
    stop_reason: int | str | None = None
    """The stop id or stop string that ended the output; None for EOS and for the other reasons."""

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
    """The prompt's tokens by `l1`, `l2`, `l3` and `computed:REASON`; together all of them."""
    queued_s: float | None = None
    """The time from arrival at the Scheduler to the first admission, by the Scheduler's clock."""
    time_to_first_token_s: float | None = None
    latency_s: float | None = None
    """The time from submission to the last token."""
    num_output_tokens: int = 0


@dataclass(slots=True, kw_only=True)
class RequestOutput:
    """One request's output: cumulative, new or final, as its `output_kind` says."""

    request_id: RequestId
    prompt: str | None
    """The text of the prompt; None where the caller gave token ids."""
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    """Whether this is the last output of its request; exactly one is."""
    metrics: RequestMetrics
    prompt_logprobs: Sequence[PromptEntry] | None = None
    """The logprobs of the prompt's tokens, if `prompt_logprobs` asks for them: one dict per token,
    from token id to Logprob, but None for the first. Under `output_kind="delta"` the first output
    has them, and later ones None.
    """
    num_cached_tokens: int = 0
    """The number of prompt tokens that were not computed: the sum of `l1`, `l2` and `l3`."""
