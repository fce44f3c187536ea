"""One client's connection to the Scheduler: requests go out, and frames of tokens come back."""

import asyncio
import contextlib
import secrets
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from raydix.errors import BadParameter, Cancelled, EngineDead, RaydixError
from raydix.ids import AskingId, RequestId
from raydix.runtime.actors.links.link import Link, LinkClosed
from raydix.runtime.api.model_limits import ModelLimits
from raydix.runtime.api.open_requests import Callers, OnNews, OpenRequest, RequestGroup
from raydix.runtime.api.outputs import RequestOutput
from raydix.runtime.api.prompts import Prompt, TokenizedPrompt, check_token_ids
from raydix.runtime.api.request_names import RequestNames
from raydix.runtime.api.request_options import RequestOptions, check_text
from raydix.runtime.api.request_stream import RequestStream, StreamedRequest, error_of
from raydix.runtime.api.samples import id_of_sample, outputs_of_samples, params_of_sample
from raydix.runtime.api.sampling_params import SamplingParams
from raydix.runtime.api.text_desk import TextDesk
from raydix.runtime.api.tokenizer import Tokenizer
from raydix.runtime.messages.arrays import Int32Array
from raydix.runtime.messages.client import (
    AbortRequest,
    PrefetchPrompt,
    RequestDelta,
    RetainSession,
    StopRequest,
    SubmitRequest,
    TokenFrame,
)


class EngineClient:
    """Sends requests over one link and hands each caller its outputs.

    Owns: the streams of this connection, and its askings. Must be made on a running loop and used
    on that loop alone. What a slow caller has not taken is merged into one output, so that a stream
    holds no more than one request's output.

    A request id is free again as soon as the Scheduler has been told to end its request. What the
    Scheduler sent before it heard that quotes the former asking, to which nobody listens any more.
    """

    def __init__(
        self,
        link: Link,
        limits: ModelLimits,
        tokenizer: Tokenizer | None,
    ) -> None:
        self._link = link
        self._limits = limits
        self.texts = TextDesk(tokenizer, limits.max_model_len)

        self._num_askings = 0
        self._live: dict[AskingId, OpenRequest] = {}
        self._callers = Callers()
        self._prefetches: dict[AskingId, asyncio.Future[dict[str, int]]] = {}
        self._unanswered: set[AskingId] = set()
        """The askings whose last delta has not come."""
        self._names = RequestNames()
        self._is_closed = False

        self._reader = asyncio.create_task(self._read_frames(), name="raydix-client-reader")

    @property
    def is_closed(self) -> bool:
        """The link is gone: every stream has failed and no request can be sent."""
        return self._is_closed

    @property
    def limits(self) -> ModelLimits:
        """The limits of the served model."""
        return self._limits

    @property
    def has_tokenizer(self) -> bool:
        """Whether outputs have text."""
        return self.texts.tokenizer is not None

    @property
    def num_requests(self) -> int:
        """Requests that the Scheduler has not ended yet."""
        return len(self._unanswered)

    def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | Mapping[str, Any] | None = None,
        request_id: str | None = None,
        options: RequestOptions | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Submit a request and yield its outputs; leaving before the last one aborts it."""
        params = SamplingParams.of(sampling_params)
        check_text("request_id", request_id)
        name = RequestId(uuid.uuid4().hex if request_id is None else request_id)
        stream = self._stream if params.n == 1 else self._stream_samples
        return stream(prompt, params, name, options or RequestOptions())

    async def _stream_samples(
        self, prompt: Prompt, params: SamplingParams, name: RequestId, options: RequestOptions
    ) -> AsyncGenerator[RequestOutput, None]:
        """Submit one request for each sample; all go where the first one is, to share its pages."""
        self._limits.check_num_requests(params.n)
        names = [id_of_sample(name, index) for index in range(params.n)]
        with self._names.reserved(names):
            tokenized = await self.tokenized(prompt)
        joined = replace(options, sample_of=name)
        news = asyncio.Event()

        with self._names.together(names), RequestGroup(news.set) as group:
            for index, each in enumerate(names):
                own = params_of_sample(params, index)
                asked = joined if index else options
                group.add(partial(self.open, tokenized, own, each, asked))
            async with contextlib.aclosing(
                outputs_of_samples(name, group.all_news(news), params.n, params.output_kind)
            ) as outputs:
                async for output in outputs:
                    yield output

    async def _stream(
        self, prompt: Prompt, params: SamplingParams, name: RequestId, options: RequestOptions
    ) -> AsyncGenerator[RequestOutput, None]:
        with self._names.reserved([name]):
            tokenized = await self.tokenized(prompt)
        news = asyncio.Event()
        request = self.open(tokenized, params, name, options, news.set)
        async with contextlib.aclosing(request.outputs(news)) as outputs:
            async for output in outputs:
                yield output

    def open(
        self,
        prompt: TokenizedPrompt,
        params: SamplingParams,
        request_id: RequestId,
        options: RequestOptions,
        on_news: OnNews,
    ) -> OpenRequest:
        """Submit a request, whose `n` must be 1; the caller closes what this returns.

        `on_news` is called when something can be taken: once, until it is taken.
        """
        assert params.n == 1, "several samples are several requests"
        submission = self._submission(params, request_id, prompt.token_ids, options)
        self._names.require_free(request_id)
        submitted_s = time.monotonic()
        # Sent first, as that may fail; and what is made below then delays the request by nothing.
        self._ask(submission)

        streamed = StreamedRequest(
            request_id=request_id,
            prompt=prompt.text,
            prompt_token_ids=prompt.token_ids.tolist(),
            params=params,
            ending_token_ids=frozenset(submission.stop_token_ids),
            submitted_s=submitted_s,
        )
        stream = RequestStream(streamed, self.texts.tokenizer)
        request = OpenRequest(submission.asking, request_id, stream, on_news, self._leave)
        self._live[submission.asking] = request
        return request

    async def prefetch(self, prompt: Prompt, cache_salt: str | None = None) -> dict[str, int]:
        """Prefetch as `AsyncLLM.prefetch` does. Cancelling the task ends it."""
        token_ids = (await self.tokenized(prompt)).token_ids
        check_text("cache_salt", cache_salt)
        request_id = RequestId(uuid.uuid4().hex)
        message = PrefetchPrompt(
            asking=self._next_asking(),
            request_id=request_id,
            token_ids=token_ids,
            cache_salt=cache_salt,
        )

        self._ask(message)
        answer = self._prefetches[message.asking] = asyncio.get_running_loop().create_future()
        try:
            return await answer
        finally:
            del self._prefetches[message.asking]
            self.abort(request_id)

    def abort(self, request_id: str) -> None:
        """End a request; ids that are not in use are ignored.

        Its stream yields a finished output with reason `abort`.
        """
        for each, asking in self._names.askings_of(RequestId(request_id)):
            self._tell_to_end(AbortRequest(asking=asking, request_id=each))

    async def close(self) -> None:
        """Close the link; open streams raise Cancelled, and the Scheduler aborts their requests."""
        self._end_all(lambda: Cancelled("The client was closed while the request was running."))
        self._link.close()
        self.texts.close()
        self._reader.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._reader

    def abandon(self) -> None:
        """Close the link from outside of its loop, which runs no more; streams may not be told."""
        self._is_closed = True
        self._link.cut()

    async def tokenized(self, prompt: Prompt, tenant: str | None = None) -> TokenizedPrompt:
        """The prompt as a request takes it; `tenant`: whose turn it is to tokenise text.

        Raises BadRequest and PromptTooLong.
        """
        text, token_ids = await self.texts.token_ids_of(prompt, tenant)
        vocab_size, max_model_len = self._limits.vocab_size, self._limits.max_model_len
        return TokenizedPrompt(text, check_token_ids(token_ids, vocab_size, max_model_len))

    def _submission(
        self,
        params: SamplingParams,
        request_id: RequestId,
        token_ids: Int32Array,
        options: RequestOptions,
    ) -> SubmitRequest:
        for name, named_ids in (
            ("stop_token_ids", tuple(params.stop_token_ids)),
            ("logit_bias", tuple(params.biases)),
        ):
            wrong_ids = [each for each in named_ids if each >= self._limits.vocab_size]
            if wrong_ids:
                last = self._limits.vocab_size - 1
                raise BadParameter(name, f"has {wrong_ids[:8]}; expected ids from 0 to {last}.")
        if params.stop and self.texts.tokenizer is None:
            raise BadParameter(
                "stop",
                f"is {list(params.stop)}, but the checkpoint has no tokenizer that this process "
                "can read. Use stop_token_ids.",
            )
        options.check()

        sampling = params.to_device(self._limits.eos_token_ids, secrets.randbits(63))
        if len(sampling.masked_until_min_tokens) >= self._limits.vocab_size:
            raise BadParameter(
                "min_tokens",
                f"is {params.min_tokens}, and before so many tokens no stop id is sampled, which "
                "leaves no token at all. Set it to 0, or name fewer stop_token_ids.",
            )
        return SubmitRequest(
            asking=self._next_asking(),
            request_id=request_id,
            token_ids=token_ids,
            sampling=sampling,
            max_tokens=params.max_tokens,
            stop_token_ids=params.ending_token_ids(self._limits.eos_token_ids),
            priority=int(options.priority),
            cache_salt=options.cache_salt,
            session_id=options.session_id,
            routing_key=options.routing_key,
            deadline_s=None if options.deadline_s is None else float(options.deadline_s),
            sample_of=None if options.sample_of is None else RequestId(options.sample_of),
            grammar=params.grammar(),
            retention=options.retention,
        )

    def _next_asking(self) -> AskingId:
        self._num_askings += 1
        return AskingId(self._num_askings)

    def _ask(self, message: SubmitRequest | PrefetchPrompt) -> None:
        self.send(message)
        self._unanswered.add(message.asking)
        self._names.use(message.request_id, message.asking)

    def send(self, message: SubmitRequest | PrefetchPrompt | RetainSession) -> None:
        """Say something to the Scheduler. Raises EngineDead."""
        if self._is_closed:
            raise EngineDead("The connection to the engine is closed. Connect again.")
        try:
            self._link.send(message)
        except LinkClosed as error:
            raise EngineDead(
                f"The connection to the engine is closed ({error}). Connect again."
            ) from error

    def _leave(self, request: OpenRequest) -> None:
        """Stop listening: abort what still runs, and drop what may come of it."""
        if self._live.pop(request.asking, None) is None:
            return
        # By now its id may stand for a later asking.
        is_in_use = self._names.is_used_by(request.request_id, request.asking)
        if is_in_use and not request.stream.has_ended:
            self._tell_to_end(AbortRequest(asking=request.asking, request_id=request.request_id))

    async def _read_frames(self) -> None:
        """Sort frames into streams until the link closes."""
        reason = "its reader was stopped"
        try:
            while True:
                frame = await self._link.receive()
                assert isinstance(frame, TokenFrame), (
                    f"the Scheduler sent a client a {type(frame).__name__}"
                )
                self._route(frame)

        except LinkClosed as error:
            reason = str(error) or "the link closed"
        except (Exception, asyncio.CancelledError):
            # Cancelled at the end of its event loop: nobody waits for the requests any more.
            self._link.close()
            raise
        finally:
            # Whatever ended the reader, nobody may wait for it.
            self._end_all(
                lambda: EngineDead(
                    f"The connection to the engine is lost: {reason}. Connect again."
                )
            )

    def _route(self, frame: TokenFrame) -> None:
        now_s = time.monotonic()

        # Plain tokens come as columns, all else as deltas.
        for asking, token_id in zip(frame.askings, frame.token_ids.tolist(), strict=True):
            live = self._live.get(asking)
            if live is not None:
                if live.stream.push_token(token_id, now_s):
                    self._stop(live)
                self._callers.note_news(live)

        for delta in frame.deltas:
            is_last = delta.finished is not None or delta.failure is not None
            if is_last:
                self._unanswered.discard(delta.asking)
                self._names.release(delta.request_id, delta.asking)
                self._end_prefetch(delta)

            live = self._live.get(delta.asking)
            if live is not None:
                if live.stream.push(delta, now_s) and not is_last:
                    self._stop(live)
                self._callers.note_news(live)

    def _stop(self, live: OpenRequest) -> None:
        """Note that a stop string ended the output, which the Scheduler cannot know."""
        self._tell_to_end(StopRequest(asking=live.asking, request_id=live.request_id))

    def _end_prefetch(self, delta: RequestDelta) -> None:
        answer = self._prefetches.get(delta.asking)
        if answer is None or answer.done():
            return
        if delta.failure is not None:
            answer.set_exception(error_of(delta.failure))
        else:
            answer.set_result(delta.cached_tokens_by_source or {})

    def _tell_to_end(self, message: AbortRequest | StopRequest) -> None:
        self._names.release(message.request_id, message.asking)
        # A closed link needs no abort: the Scheduler ends all requests of a client that is gone.
        with contextlib.suppress(LinkClosed):
            self._link.send(message)

    def _end_all(self, error: Callable[[], RaydixError]) -> None:
        self._is_closed = True
        self._unanswered.clear()
        self._names.release_all()
        for live in list(self._live.values()):
            live.stream.fail(error())
            if live.note_news():
                live.tell()
        for answer in self._prefetches.values():
            if not answer.done():
                answer.set_exception(error())
