"""Several samples of one prompt, as the one stream that their caller asked for."""

import contextlib
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace

from raydix.errors import DeadlineExceeded, RaydixError
from raydix.ids import RequestId
from raydix.runtime.api.open_requests import Taken
from raydix.runtime.api.outputs import CompletionOutput, RequestMetrics, RequestOutput
from raydix.runtime.api.sampling_params import OutputKind, SamplingParams

_MAX_SEED = 2**63 - 1


def params_of_sample(params: SamplingParams, index: int) -> SamplingParams:
    """The sampling of one sample: each has a seed of its own, the first one the given one.

    Only the first tells of the prompt, for which it computes it anew; the others share it.
    """
    if index == 0 and params.n == 1:
        return params
    seed = None if params.seed is None else (params.seed + index) % (_MAX_SEED + 1)
    prompt_logprobs = None if index else params.prompt_logprobs
    return replace(params, n=1, seed=seed, prompt_logprobs=prompt_logprobs)


def id_of_sample(request_id: RequestId, index: int) -> RequestId:
    """The request id of one sample; the first one has the caller's, by which it is explained."""
    return RequestId(f"{request_id}-{index}") if index else request_id


async def outputs_of_samples(
    request_id: RequestId,
    news: AsyncGenerator[tuple[int, Taken], None],
    num_samples: int,
    kind: OutputKind,
) -> AsyncGenerator[RequestOutput, None]:
    """The outputs of all samples as they come, each completion with its sample's index.

    By `kind` an output holds what all samples have so far, what is new of one of them, or all of
    them once, at the end. Exactly one is finished. The first error is raised.
    """
    samples = _Samples(request_id, num_samples)
    async with contextlib.aclosing(news):
        async for index, taken in news:
            if isinstance(taken, RaydixError):
                raise _of_all(taken, samples, index)
            samples.note(index, taken)
            if samples.is_finished or kind is not OutputKind.FINAL:
                yield samples.output(index, kind)


class _Samples:
    """Owns: the latest output of each sample."""

    def __init__(self, request_id: RequestId, num_samples: int) -> None:
        self._request_id = request_id
        self._latest: list[RequestOutput | None] = [None] * num_samples

    @property
    def is_finished(self) -> bool:
        """Every sample has its end."""
        return all(each is not None and each.finished for each in self._latest)

    def note(self, index: int, output: RequestOutput) -> None:
        """Note the news of a sample."""
        self._latest[index] = output

    def output(self, index: int, kind: OutputKind) -> RequestOutput:
        """The output of the whole request, for news of one of its samples."""
        known = [each for each in self._latest if each is not None]
        # The first one computed the prompt for all, unless it is late.
        first = self._latest[0] or known[0]
        if kind is OutputKind.DELTA:
            news = self._latest[index]
            assert news is not None, "it has news"
            completions = [replace(news.outputs[0], index=index)]
            # Not again what the first one's latest news said.
            prompt_logprobs = news.prompt_logprobs
        else:
            completions = self._completions()
            prompt_logprobs = first.prompt_logprobs

        return replace(
            first,
            request_id=self._request_id,
            outputs=completions,
            finished=self.is_finished,
            prompt_logprobs=prompt_logprobs,
            metrics=_metrics(first, known, is_finished=self.is_finished),
        )

    def _completions(self) -> list[CompletionOutput]:
        """The completions of all samples, in order; an empty one for each that has no news yet."""
        return [
            CompletionOutput(index=index) if each is None else replace(each.outputs[0], index=index)
            for index, each in enumerate(self._latest)
        ]


def _metrics(
    first: RequestOutput, known: Sequence[RequestOutput], *, is_finished: bool
) -> RequestMetrics:
    """The prompt's sources as the first sample found them; its times from first to last token."""
    first_tokens_s = [
        each.metrics.time_to_first_token_s
        for each in known
        if each.metrics.time_to_first_token_s is not None
    ]
    latencies_s = [each.metrics.latency_s or 0.0 for each in known]
    return replace(
        first.metrics,
        time_to_first_token_s=min(first_tokens_s, default=None),
        latency_s=max(latencies_s) if is_finished else None,
        num_output_tokens=sum(each.metrics.num_output_tokens for each in known),
    )


def _of_all(error: RaydixError, samples: _Samples, index: int) -> RaydixError:
    """The error of one sample. A deadline's gets what all samples have so far."""
    if isinstance(error, DeadlineExceeded) and isinstance(error.partial, RequestOutput):
        samples.note(index, error.partial)
        return DeadlineExceeded(str(error), partial=samples.output(index, OutputKind.CUMULATIVE))
    return error
