"""Several samples of one prompt, as the one stream that their caller asked for."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace

from raydix.errors import DeadlineExceeded
from raydix.ids import RequestId
from raydix.runtime.api.outputs import CompletionOutput, RequestMetrics, RequestOutput
from raydix.runtime.api.sampling_params import OutputKind, SamplingParams

_MAX_SEED = 2**63 - 1

Stream = AsyncGenerator[RequestOutput, None]


def params_of_sample(params: SamplingParams, index: int) -> SamplingParams:
    """The sampling of one sample: each has a seed of its own, the first one the given one.

    The first one alone tells of the prompt: who does computes it anew, and the others share it.
    """
    seed = None if params.seed is None else (params.seed + index) % (_MAX_SEED + 1)
    prompt_logprobs = None if index else params.prompt_logprobs
    return replace(params, n=1, seed=seed, prompt_logprobs=prompt_logprobs)


def id_of_sample(request_id: RequestId, index: int) -> RequestId:
    """The request id of one sample; the first one has the caller's, by which it is explained."""
    return RequestId(f"{request_id}-{index}") if index else request_id


async def outputs_of_samples(
    request_id: RequestId, streams: Sequence[Stream], kind: OutputKind
) -> Stream:
    """The outputs of all samples as they come, each completion with its sample's index.

    By `kind` an output holds what all samples have so far, what is new of one of them, or all of
    them once, at the end. Exactly one is finished. Leaving before that ends every stream, and so
    does the first error, which is raised.
    """
    samples = _Samples(request_id, len(streams))
    waiting = {asyncio.ensure_future(anext(each)): index for index, each in enumerate(streams)}
    try:
        while waiting:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            ready = [(index, task) for task, index in waiting.items() if task.done()]
            for index, task in sorted(ready, key=lambda each: each[0]):
                del waiting[task]
                output = _result(task, samples, index)
                samples.note(index, output)
                if not output.finished:
                    waiting[asyncio.ensure_future(anext(streams[index]))] = index
                if samples.is_finished or kind is not OutputKind.FINAL:
                    yield samples.output(index, kind)
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        for stream in streams:
            await stream.aclose()


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
        """A sample has news."""
        self._latest[index] = output

    def output(self, index: int, kind: OutputKind) -> RequestOutput:
        """What the caller gets for news of a sample."""
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
        """Of every sample, in order; of those without news yet, an empty one."""
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


def _result(task: "asyncio.Future[RequestOutput]", samples: _Samples, index: int) -> RequestOutput:
    """What a sample brings. A deadline's error gets what all samples have so far."""
    try:
        return task.result()
    except DeadlineExceeded as error:
        if isinstance(error.partial, RequestOutput):
            samples.note(index, error.partial)
            whole = samples.output(index, OutputKind.CUMULATIVE)
            raise DeadlineExceeded(str(error), partial=whole) from error
        raise
