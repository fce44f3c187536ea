"""Turn the Scheduler's reports of one request into what its caller receives. No I/O, no clock."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from raydix.errors import (
    BadParameter,
    BadRequest,
    DeadlineExceeded,
    EngineAsleep,
    EngineDead,
    ModelFailed,
    Overloaded,
    PromptTooLong,
    RaydixError,
)
from raydix.ids import RequestId
from raydix.runtime.api.output_so_far import OutputSoFar
from raydix.runtime.api.outputs import CompletionOutput, Logprob, RequestMetrics, RequestOutput
from raydix.runtime.api.prompt_logprobs import PromptEntries
from raydix.runtime.api.sampling_params import OutputKind, SamplingParams
from raydix.runtime.api.stop_strings import StopStringFinder
from raydix.runtime.api.tokenizer import Tokenizer
from raydix.runtime.messages.arrays import Int32Array, int32_array
from raydix.runtime.messages.client import FailureKind, FinishReason, RequestDelta, RequestFailure
from raydix.runtime.messages.plan import TokenLogprobs

_TIERS = ("l1", "l2", "peer", "l3")


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamedRequest:
    """What the stream must know of the request."""

    request_id: RequestId
    prompt: str | None
    prompt_token_ids: list[int]
    params: SamplingParams
    ending_token_ids: frozenset[int]
    submitted_s: float


class RequestStream:
    """Turns deltas into outputs: detokenises, finds stop strings, merges what was not taken yet.

    Owns: the output of one request as the client knows it. `push` takes deltas, `take` gives the
    next output; deltas that arrive between two takes come as one output. Exactly one output is
    finished, unless `failure` is set.
    """

    def __init__(self, request: StreamedRequest, tokenizer: Tokenizer | None) -> None:
        params = request.params
        self._request = request
        self._params = params
        self._tokenizer = tokenizer
        self._detokenizer = (
            tokenizer.detokenizer(params.skip_special_tokens, request.prompt_token_ids)
            if tokenizer is not None and params.detokenize
            else None
        )
        self._finder = (
            StopStringFinder(params.stop, params.include_stop_str_in_output)
            if params.stop
            else None
        )

        self._output = OutputSoFar(
            has_logprobs=params.logprobs is not None, has_text=self._detokenizer is not None
        )
        self._prompt_logprobs = None if params.prompt_logprobs is None else self._prompt_entries()
        self._decoded: dict[int, tuple[str, bytes]] = {}
        """The text and bytes of each token that logprobs have been given for."""
        self._metrics = RequestMetrics()
        self._num_cached_tokens = 0
        self._finish_reason: FinishReason | None = None
        self._stop_reason: int | str | None = None
        self._has_news = False
        self.tells_parts = params.output_kind is not OutputKind.FINAL
        """Whether there are outputs before the finished one."""
        self.failure: RaydixError | None = None
        """The reason why there will be no finished output. Earlier outputs can still be taken."""

    @property
    def has_ended(self) -> bool:
        """No delta matters any more: the output is finished or has failed."""
        return self._finish_reason is not None or self.failure is not None

    @property
    def is_ready(self) -> bool:
        """`take` would give an output, or `failure` is set."""
        return (self._has_news and self.tells_parts) or self.has_ended

    @property
    def num_tokens(self) -> int:
        """The length of the output so far."""
        return len(self._output.token_ids)

    @property
    def token_ids(self) -> Int32Array:
        """The output so far, int32."""
        return int32_array(self._output.token_ids)

    def begin_anew(self) -> None:
        """Expect the request's news from the beginning, as it is asked again without any output."""
        assert not self._output.token_ids, "what has come of the output does not come again"
        if self._prompt_logprobs is not None:
            self._prompt_logprobs = self._prompt_entries()

    def push(self, delta: RequestDelta, now_s: float) -> bool:
        """Take in a delta; whether a stop string in it ended the output.

        Once the stream has ended it is ignored.
        """
        if self.has_ended:
            return False

        # What goes on after a loss is told once more where its prompt comes from.
        if delta.cached_tokens_by_source is not None and not self._output.token_ids:
            self._note_admission(delta, now_s)
        if self._prompt_logprobs is not None:
            for run in delta.prompt_logprobs:
                self._prompt_logprobs.add(run)
        token_ids = delta.token_ids.tolist()
        hides_last = self._hides_last(token_ids, delta)
        if self._finder is None and self._params.logprobs is None:
            self._append_all(token_ids, hides_last=hides_last)
        else:
            self._append_each(token_ids, delta.logprobs, hides_last=hides_last)

        # A stop string among these tokens has ended the stream already, whatever followed it.
        if delta.failure is not None and not self.has_ended:
            self.failure = error_of(delta.failure, partial=self._wrap(self._cumulative()))
        elif delta.finished is not None and not self.has_ended:
            self._finish(delta.finished)
        return self._note_end(now_s)

    def push_token(self, token_id: int, now_s: float) -> bool:
        """`push` of a token of which nothing more is told, as most are between first and last."""
        if self._finish_reason is not None or self.failure is not None:
            return False

        if self._finder is None:
            self._output.token_ids.append(token_id)
            self._has_news = True
            if self._detokenizer is not None:
                self._output.show(self._detokenizer.push((token_id,)))
            return False
        self._append_each([token_id], (), hides_last=False)
        return self._note_end(now_s)

    def fail(self, error: RaydixError) -> None:
        """End the stream with `error`, unless it has ended."""
        if not self.has_ended:
            self.failure = error

    def take(self) -> RequestOutput | None:
        """Take what is new to the caller, as its `output_kind` asks; None if nothing is."""
        is_finished = self._finish_reason is not None
        if not self._has_news or not (self.tells_parts or is_finished):
            return None
        self._has_news = False
        if self._params.output_kind is not OutputKind.DELTA:
            return self._wrap(self._cumulative())

        is_open = self._detokenizer is not None and self._detokenizer.is_open
        new = self._output.take_new(is_open=is_open, is_finished=is_finished)
        if not new.token_ids and not is_finished:
            return None
        output = self._wrap(self._with_end(new))
        self._prompt_logprobs = None
        return output

    def _prompt_entries(self) -> PromptEntries:
        return PromptEntries(self._request.prompt_token_ids, self._decode_one)

    def _append_all(self, token_ids: list[int], *, hides_last: bool) -> None:
        if not token_ids:
            return
        self._output.token_ids.extend(token_ids)
        self._has_news = True
        if self._detokenizer is not None:
            shown = token_ids[:-1] if hides_last else token_ids
            self._output.show(self._detokenizer.push(shown))

    def _append_each(
        self, token_ids: list[int], logprobs: Sequence[TokenLogprobs | None], *, hides_last: bool
    ) -> None:
        """Append tokens, each with its text, up to the one that completes a stop string."""
        # One by one: the output must end with the same token however deltas were merged.
        for i, token_id in enumerate(token_ids):
            is_hidden = hides_last and i == len(token_ids) - 1
            if is_hidden and self._detokenizer is not None:
                # Of the tokens before it.
                self._show(self._detokenizer.flush())
                if self._finish_reason is not None:
                    return

            self._output.add_token(token_id)
            self._has_news = True
            if self._params.logprobs is not None:
                self._append_logprobs(logprobs[i])
            if self._detokenizer is not None and not is_hidden:
                self._show(self._detokenizer.push((token_id,)))
                if self._finish_reason is not None:
                    return

    def _show(self, text: str) -> None:
        """Take the text of the latest token; a stop string in it ends the output."""
        self._output.add_text(text)
        if self._finder is None:
            self._output.show(text)
            return
        is_checked = len(self._output.token_ids) > self._params.min_tokens
        self._output.show(
            self._finder.push(text) if is_checked else self._finder.push_unchecked(text)
        )
        if self._finder.matched is not None:
            self._finish_reason = FinishReason.STOP
            self._stop_reason = self._finder.matched
            self._has_news = True

    def _hides_last(self, token_ids: list[int], delta: RequestDelta) -> bool:
        """Whether the last token ended the output and is not to be shown in its text."""
        is_ending = (
            delta.finished is FinishReason.STOP
            and bool(token_ids)
            and token_ids[-1] in self._request.ending_token_ids
        )
        return is_ending and not self._params.include_stop_str_in_output

    def _append_logprobs(self, entry: TokenLogprobs | None) -> None:
        assert entry is not None, "the engine left out logprobs that the request asked for"
        self._output.logprobs.append(
            {
                token_id: Logprob(logprob, rank, *self._told_of(token_id))
                for token_id, logprob, rank in zip(
                    entry.token_ids, entry.logprobs, entry.ranks, strict=True
                )
            }
        )

    def _decode_one(self, token_id: int) -> str | None:
        return self._told_of(token_id)[0]

    def _told_of(self, token_id: int) -> tuple[str | None, bytes | None]:
        """A token's text and bytes."""
        if self._tokenizer is None or not self._params.detokenize:
            return None, None
        told = self._decoded.get(token_id)
        if told is None:
            text = self._tokenizer.token_text(token_id)
            told = self._decoded[token_id] = text, self._tokenizer.token_bytes(token_id)
        return told

    def _finish(self, reason: FinishReason) -> None:
        if self._detokenizer is not None:
            self._show(self._detokenizer.flush())
        # The text that was held back may have completed a stop string.
        if self._finish_reason is not None:
            return
        if self._finder is not None:
            self._output.show(self._finder.flush())

        self._finish_reason = reason
        self._has_news = True
        token_ids = self._output.token_ids
        if (
            reason is FinishReason.STOP
            and token_ids
            and token_ids[-1] in self._params.stop_token_ids
        ):
            self._stop_reason = token_ids[-1]

    def _note_admission(self, delta: RequestDelta, now_s: float) -> None:
        by_source = dict(delta.cached_tokens_by_source or {})
        self._num_cached_tokens = sum(by_source.get(tier, 0) for tier in _TIERS)
        self._metrics = RequestMetrics(
            cached_tokens_by_source=by_source,
            queued_s=delta.queued_s,
            time_to_first_token_s=now_s - self._request.submitted_s
            if len(delta.token_ids)
            else None,
        )

    def _note_end(self, now_s: float) -> bool:
        """Complete the figures of an output that has ended; whether a stop string did that."""
        if self._finish_reason is None:
            return False
        self._metrics = RequestMetrics(
            cached_tokens_by_source=self._metrics.cached_tokens_by_source,
            queued_s=self._metrics.queued_s,
            time_to_first_token_s=self._metrics.time_to_first_token_s,
            latency_s=now_s - self._request.submitted_s,
            num_output_tokens=len(self._output.token_ids),
        )
        return self._finder is not None and self._finder.matched is not None

    def _cumulative(self) -> CompletionOutput:
        return self._with_end(self._output.whole())

    def _with_end(self, completion: CompletionOutput) -> CompletionOutput:
        if self._finish_reason is None:
            return completion
        reason = self._finish_reason.value
        return replace(completion, finish_reason=reason, stop_reason=self._stop_reason)

    def _wrap(self, completion: CompletionOutput) -> RequestOutput:
        return RequestOutput(
            request_id=self._request.request_id,
            prompt=self._request.prompt,
            prompt_token_ids=self._request.prompt_token_ids,
            outputs=[completion],
            finished=self._finish_reason is not None,
            metrics=self._metrics,
            prompt_logprobs=self._prompt_logprobs,
            num_cached_tokens=self._num_cached_tokens,
        )


def error_of(failure: RequestFailure, partial: RequestOutput | None = None) -> RaydixError:
    """The error that a caller sees of a failure; `partial`: the output so far."""
    match failure.kind:
        case FailureKind.BAD_REQUEST:
            if failure.parameter is not None:
                return BadParameter(failure.parameter, failure.message)
            return BadRequest(failure.message)
        case FailureKind.PROMPT_TOO_LONG:
            return PromptTooLong(failure.message)
        case FailureKind.OVERLOADED:
            return Overloaded(failure.message, failure.retry_after_s)
        case FailureKind.DEADLINE_EXCEEDED:
            return DeadlineExceeded(failure.message, partial=partial)
        case FailureKind.ENGINE_DEAD | FailureKind.SHUTTING_DOWN:
            return EngineDead(failure.message)
        case FailureKind.MODEL_FAILED:
            return ModelFailed(failure.message)
        case FailureKind.ASLEEP:
            return EngineAsleep(failure.message, failure.retry_after_s)
