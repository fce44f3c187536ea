"""One client's connection to the Scheduler: requests go out, and frames of tokens come back."""

import asyncio
import contextlib
import secrets
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from raydix.errors import BadRequest, Cancelled, EngineDead, RaydixError
from raydix.ids import AskingId, RequestId
from raydix.runtime.actors.links.link import Link, LinkClosed
from raydix.runtime.api.outputs import RequestOutput
from raydix.runtime.api.prompts import Prompt, TokenPrompt, check_token_ids, read_prompt
from raydix.runtime.api.request_options import RequestOptions, check_text
from raydix.runtime.api.request_stream import RequestStream, StreamedRequest, error_of
from raydix.runtime.api.samples import id_of_sample, outputs_of_samples, params_of_sample
from raydix.runtime.api.sampling_params import SamplingParams
from raydix.runtime.api.tokenizer import Tokenizer
from raydix.runtime.messages.arrays import Int32Array
from raydix.runtime.messages.client import (
    AbortRequest,
    PrefetchPrompt,
    RequestDelta,
    StopRequest,
    SubmitRequest,
    TokenFrame,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLimits:
    """What the served model allows, which a client checks its requests against."""

    max_model_len: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]


@dataclass(slots=True)
class _Live:
    """A request whose caller still listens."""

    request_id: RequestId
    stream: RequestStream
    news: asyncio.Event = field(default_factory=asyncio.Event)


class EngineClient:
    """Sends requests over one link and hands each caller its outputs.

    Owns: the streams of this connection, its askings, and which request ids they use. Must be made
    on a running loop and used on that loop alone. What a slow caller has not taken is merged into
    one output, so that a stream holds no more than one request's output.

    A request id is free again as soon as the Scheduler has been told to end its request: what it
    sent before that names the earlier asking, and nobody listens to that one any more.
    """

    def __init__(
        self,
        link: Link,
        limits: ModelLimits,
        tokenizer: Tokenizer | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._link = link
        self._limits = limits
        self._tokenizer = tokenizer
        self._clock = clock

        self._num_askings = 0
        self._live: dict[AskingId, _Live] = {}
        self._prefetches: dict[AskingId, asyncio.Future[dict[str, int]]] = {}
        self._unanswered: set[AskingId] = set()
        """Askings whose last delta has not come."""
        self._in_use: dict[RequestId, AskingId] = {}
        """Request ids of unanswered askings that the Scheduler was not told to end."""
        self._samples: dict[RequestId, Sequence[RequestId]] = {}
        """Of requests for several samples, the ids of all."""
        self._is_closed = False

        self._reader = asyncio.create_task(self._read_frames(), name="raydix-client-reader")

    @property
    def is_closed(self) -> bool:
        """The link is gone: every stream has failed and no request can be sent."""
        return self._is_closed

    @property
    def limits(self) -> ModelLimits:
        """What the served model allows."""
        return self._limits

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
        """One request for each sample; they meet where the first one is."""
        text, token_ids = await self._tokenize(prompt)
        names = [id_of_sample(name, index) for index in range(params.n)]
        # Here, too: once its samples are noted, an asking that is refused would take the place of
        # the one that has the id.
        for each in names:
            self._require_free(each)
        joined = replace(options, sample_of=name)
        streams = [
            self._stream(
                token_ids, params_of_sample(params, index), each, joined if index else options
            )
            for index, each in enumerate(names)
        ]

        self._samples[name] = names
        try:
            async with contextlib.aclosing(
                outputs_of_samples(name, streams, params.output_kind)
            ) as outputs:
                async for output in outputs:
                    yield replace(output, prompt=text)
        finally:
            if self._samples.get(name) is names:
                del self._samples[name]

    async def _stream(
        self, prompt: Prompt, params: SamplingParams, name: RequestId, options: RequestOptions
    ) -> AsyncGenerator[RequestOutput, None]:
        text, token_ids = await self._tokenize(prompt)
        submission = self._submission(params, name, token_ids, options)
        live = self._submit(submission, params, text)

        try:
            while True:
                if not live.stream.is_ready:
                    live.news.clear()
                    await live.news.wait()
                output = live.stream.take()
                if output is not None:
                    yield output
                    if output.finished:
                        return
                elif live.stream.failure is not None:
                    raise live.stream.failure
        finally:
            self._leave(submission, live)

    async def prefetch(self, prompt: Prompt, cache_salt: str | None = None) -> dict[str, int]:
        """See `AsyncLLM.prefetch`. Cancelling the task ends it."""
        _, token_ids = await self._tokenize(prompt)
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
        name = RequestId(request_id)
        for each in self._samples.get(name, (name,)):
            asking = self._in_use.get(each)
            if asking is not None:
                self._tell_to_end(AbortRequest(asking=asking, request_id=each))

    async def close(self) -> None:
        """Close the link; open streams raise Cancelled, and the Scheduler aborts their requests."""
        self._end_all(lambda: Cancelled("The client was closed while the request was running."))
        self._link.close()
        self._reader.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._reader

    async def _tokenize(self, prompt: Prompt) -> tuple[str | None, Int32Array]:
        """The prompt's text, if it came as text, and its checked ids."""
        shape = read_prompt(prompt)
        vocab_size, max_model_len = self._limits.vocab_size, self._limits.max_model_len
        if isinstance(shape, TokenPrompt):
            return None, check_token_ids(shape.token_ids, vocab_size, max_model_len)
        if self._tokenizer is None:
            raise BadRequest(
                "The prompt is text, but the checkpoint has no tokenizer that this process can "
                "read. Pass token ids, or put the tokenizer's files into the checkpoint folder on "
                "this host."
            )
        token_ids = await asyncio.to_thread(self._tokenizer.encode, shape.text)
        return shape.text, check_token_ids(token_ids, vocab_size, max_model_len)

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
                raise BadRequest(
                    f"{name} has {wrong_ids}; expected ids from 0 to {self._limits.vocab_size - 1}."
                )
        if params.stop and self._tokenizer is None:
            raise BadRequest(
                f"stop is {list(params.stop)}, but the checkpoint has no tokenizer that this "
                "process can read. Use stop_token_ids."
            )
        options.check()

        return SubmitRequest(
            asking=self._next_asking(),
            request_id=request_id,
            token_ids=token_ids,
            sampling=params.to_device(self._limits.eos_token_ids, secrets.randbits(63)),
            max_tokens=params.max_tokens,
            stop_token_ids=params.ending_token_ids(self._limits.eos_token_ids),
            priority=int(options.priority),
            cache_salt=options.cache_salt,
            session_id=options.session_id,
            routing_key=options.routing_key,
            deadline_s=None if options.deadline_s is None else float(options.deadline_s),
            sample_of=None if options.sample_of is None else RequestId(options.sample_of),
        )

    def _submit(self, submission: SubmitRequest, params: SamplingParams, text: str | None) -> _Live:
        request_id = submission.request_id
        self._require_free(request_id)
        request = StreamedRequest(
            request_id=request_id,
            prompt=text,
            prompt_token_ids=submission.token_ids.tolist(),
            params=params,
            ending_token_ids=frozenset(submission.stop_token_ids),
            submitted_s=self._clock(),
        )
        live = _Live(submission.request_id, RequestStream(request, self._tokenizer))

        # Only what was sent is live: sending may fail.
        self._ask(submission)
        self._live[submission.asking] = live
        return live

    def _require_free(self, request_id: RequestId) -> None:
        if request_id in self._in_use:
            raise BadRequest(
                f"request_id {request_id!r} is in use. Choose another one, or leave it out."
            )

    def _next_asking(self) -> AskingId:
        self._num_askings += 1
        return AskingId(self._num_askings)

    def _ask(self, message: SubmitRequest | PrefetchPrompt) -> None:
        if self._is_closed:
            raise EngineDead("The connection to the engine is closed. Connect again.")
        try:
            self._link.send(message)
        except LinkClosed as error:
            raise EngineDead(
                f"The connection to the engine is closed ({error}). Connect again."
            ) from error
        self._unanswered.add(message.asking)
        self._in_use[message.request_id] = message.asking

    def _leave(self, submission: SubmitRequest, live: _Live) -> None:
        """The caller listens no more: abort what still runs, and drop what may come of it."""
        del self._live[submission.asking]
        # By now its id may stand for a later asking.
        is_in_use = self._in_use.get(submission.request_id) == submission.asking
        if is_in_use and not live.stream.has_ended:
            self._tell_to_end(
                AbortRequest(asking=submission.asking, request_id=submission.request_id)
            )

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
        finally:
            # Whatever ended the reader, nobody may wait for it.
            self._end_all(
                lambda: EngineDead(
                    f"The connection to the engine is lost: {reason}. Connect again."
                )
            )

    def _route(self, frame: TokenFrame) -> None:
        now_s = self._clock()

        # Plain tokens come as columns, all else as deltas.
        for index, asking in enumerate(frame.askings):
            live = self._live.get(asking)
            if live is not None:
                token_ids = frame.token_ids[index : index + 1]
                delta = RequestDelta(asking=asking, request_id=live.request_id, token_ids=token_ids)
                self._push(live, delta, now_s)

        for delta in frame.deltas:
            is_last = delta.finished is not None or delta.failure is not None
            if is_last:
                self._unanswered.discard(delta.asking)
                self._release_id(delta.request_id, delta.asking)
                self._end_prefetch(delta)

            live = self._live.get(delta.asking)
            if live is not None:
                self._push(live, delta, now_s)

    def _push(self, live: _Live, delta: RequestDelta, now_s: float) -> None:
        """Hand news to a caller who listens; a stop string in it ends the request."""
        stream = live.stream
        had_ended = stream.has_ended
        stream.push(delta, now_s)
        is_last = delta.finished is not None or delta.failure is not None
        if stream.has_stop_string and not had_ended and not is_last:
            self._tell_to_end(StopRequest(asking=delta.asking, request_id=delta.request_id))
        if stream.is_ready:
            live.news.set()

    def _end_prefetch(self, delta: RequestDelta) -> None:
        answer = self._prefetches.get(delta.asking)
        if answer is None or answer.done():
            return
        if delta.failure is not None:
            answer.set_exception(error_of(delta.failure))
        else:
            answer.set_result(delta.cached_tokens_by_source or {})

    def _tell_to_end(self, message: AbortRequest | StopRequest) -> None:
        self._release_id(message.request_id, message.asking)
        # A closed link needs no abort: the Scheduler ends all requests of a client that is gone.
        with contextlib.suppress(LinkClosed):
            self._link.send(message)

    def _release_id(self, request_id: RequestId, asking: AskingId) -> None:
        """A request may have this id again, unless one that was asked later has it already."""
        if self._in_use.get(request_id) == asking:
            del self._in_use[request_id]

    def _end_all(self, error: Callable[[], RaydixError]) -> None:
        self._is_closed = True
        self._unanswered.clear()
        self._in_use.clear()
        for live in self._live.values():
            live.stream.fail(error())
            live.news.set()
        for answer in self._prefetches.values():
            if not answer.done():
                answer.set_exception(error())
