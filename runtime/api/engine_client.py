"""One client of the Scheduler: requests go out, and frames of tokens come back."""

import asyncio
import contextlib
import math
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from raydix.errors import Cancelled, EngineDead, RaydixError
from raydix.ids import AskingId, RequestId
from raydix.runtime.actors.links.link import Link, LinkClosed
from raydix.runtime.api.engine_line import ChooseLine, EngineLine, EngineLines
from raydix.runtime.api.line_choice import by_session
from raydix.runtime.api.model_limits import ModelLimits
from raydix.runtime.api.open_prefetches import OpenPrefetches
from raydix.runtime.api.open_requests import Callers, OnNews, OpenRequest, RequestGroup
from raydix.runtime.api.outputs import RequestOutput
from raydix.runtime.api.prompts import Prompt, TokenizedPrompt, check_token_ids
from raydix.runtime.api.request_names import RequestNames
from raydix.runtime.api.request_options import RequestOptions, check_text
from raydix.runtime.api.request_stream import RequestStream, StreamedRequest
from raydix.runtime.api.samples import id_of_sample, outputs_of_samples, params_of_sample
from raydix.runtime.api.sampling_params import SamplingParams
from raydix.runtime.api.submission import submission_of
from raydix.runtime.api.text_desk import TextDesk
from raydix.runtime.api.tokenizer import Tokenizer
from raydix.runtime.messages.client import (
    AbortRequest,
    FinishReason,
    PrefetchPrompt,
    RequestDelta,
    RetainSession,
    StopRequest,
    SubmitRequest,
    TokenFrame,
    UnpinPrompt,
)


class EngineClient:
    """Sends requests to engines of one model and hands each caller its outputs.

    Owns: the streams of this client, and its askings. Must be made on a running loop and used on
    that loop alone. What a slow caller has not taken is merged into one output. When a link is
    lost, the rest of every output that was open over it is asked for elsewhere, or over the next
    link if there is no other. Callers notice a pause.

    A request id is free again as soon as the Scheduler has been told to end its request. What the
    Scheduler sent before it heard that quotes the former asking, to which nobody listens any more.
    """

    def __init__(
        self,
        limits: ModelLimits,
        tokenizer: Tokenizer | None,
        on_loss: Callable[[str], None] | None = None,
        choose: ChooseLine = by_session,
    ) -> None:
        """`on_loss`: told which engine's link is lost; what waits needs another, or `give_up`."""
        self._on_loss = on_loss
        self.limits = limits
        self.texts = TextDesk(tokenizer, limits.max_model_len)

        self._num_askings = 0
        self._lines = EngineLines(choose)
        self._readers: dict[str, asyncio.Task[None]] = {}
        self._live: dict[AskingId, OpenRequest] = {}
        self._callers = Callers()
        self._prefetches = OpenPrefetches()
        self._names = RequestNames()

    @property
    def is_closed(self) -> bool:
        """No link is there: no request can be sent, and those that were open wait or failed."""
        return not self._lines.up

    @property
    def has_waiting(self) -> bool:
        """Whether requests wait for a link."""
        return bool(self._waiting())

    def has_link(self, engine: str) -> bool:
        """Whether there is a link to this engine."""
        return self._lines.has_link(engine)

    def use(self, engine: str, link: Link) -> None:
        """Ask an engine of the model over this link, too; what waits is asked for at once."""
        reading = self._read_frames(self._lines.open(engine, link), link)
        self._readers[engine] = asyncio.create_task(reading, name="raydix-client-reader")
        self._ask_waiting()

    def give_up(self, error: RaydixError) -> None:
        """There will be no other link: what waits fails with `error`."""
        self._fail(self._waiting(), lambda: error)

    @property
    def has_tokenizer(self) -> bool:
        """Whether outputs have text."""
        return self.texts.tokenizer is not None

    @property
    def num_requests(self) -> int:
        """Requests that no Scheduler has ended yet."""
        return self._lines.num_requests

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
        self.limits.check_num_requests(params.n)
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
        submission = submission_of(
            self._next_asking(),
            request_id,
            prompt.token_ids,
            params,
            options,
            limits=self.limits,
            has_tokenizer=self.has_tokenizer,
        )
        self._names.require_free(request_id)
        submitted_s = time.monotonic()
        # Sent first, as that may fail; and what is made below then delays the request by nothing.
        self._ask(submission)

        deadline_s = math.inf if submission.deadline_s is None else submission.deadline_s
        streamed = StreamedRequest(
            request_id=request_id,
            prompt=prompt.text,
            prompt_token_ids=prompt.token_ids.tolist(),
            params=params,
            ending_token_ids=frozenset(submission.stop_token_ids),
            submitted_s=submitted_s,
        )
        stream = RequestStream(streamed, self.texts.tokenizer)
        request = OpenRequest(
            submission, stream, on_news, self._leave, ends_s=submitted_s + deadline_s
        )
        self._live[submission.asking] = request
        return request

    async def prefetch(self, prompt: Prompt, cache_salt: str | None = None) -> dict[str, int]:
        """Prefetch as `AsyncLLM.prefetch` does. Cancelling the task ends it."""
        return (await self.bring(prompt, cache_salt, None)).cached_tokens_by_source or {}

    async def bring(self, prompt: Prompt, salt: str | None, pin_s: float | None) -> RequestDelta:
        """Prefetch, and pin for `pin_s` what is there then; returns the last delta."""
        token_ids = (await self.tokenized(prompt)).token_ids
        check_text("cache_salt", salt)
        message = PrefetchPrompt(
            asking=self._next_asking(),
            request_id=RequestId(uuid.uuid4().hex),
            token_ids=token_ids,
            cache_salt=salt,
            pin_s=pin_s,
        )
        self._ask(message)
        with self._prefetches.waiting(message.asking) as answer:
            try:
                return await answer
            finally:
                self.abort(message.request_id)

    def abort(self, request_id: str) -> None:
        """End a request; ids that are not in use are ignored.

        Its stream yields a finished output with reason `abort`.
        """
        for each, asking in self._names.askings_of(RequestId(request_id)):
            is_told = self._tell_to_end(AbortRequest(asking=asking, request_id=each))
            if not is_told and asking in self._live:
                # It waits for a link: nobody answers.
                ended = RequestDelta(asking=asking, request_id=each, finished=FinishReason.ABORT)
                self._live[asking].stream.push(ended, time.monotonic())
                self._callers.note_news(self._live[asking])

    async def close(self) -> None:
        """Close all links; open streams raise Cancelled, and Schedulers abort their requests."""
        self._on_loss = None
        self._fail(
            list(self._live.values()),
            lambda: Cancelled("The client was closed while the request was running."),
        )
        self._lines.lose_all()
        self.texts.close()
        for reader in self._readers.values():
            reader.cancel()
        await asyncio.gather(*self._readers.values(), return_exceptions=True)

    def abandon(self) -> None:
        """Close the links from outside of their loop, which runs no more.

        Streams may not be told.
        """
        self._on_loss = None
        self._live.clear()
        self._lines.cut_all()

    async def tokenized(self, prompt: Prompt, tenant: str | None = None) -> TokenizedPrompt:
        """The prompt as a request takes it; `tenant`: whose turn it is to tokenise text.

        Raises BadRequest and PromptTooLong.
        """
        text, token_ids = await self.texts.token_ids_of(prompt, tenant)
        vocab_size, max_model_len = self.limits.vocab_size, self.limits.max_model_len
        return TokenizedPrompt(text, check_token_ids(token_ids, vocab_size, max_model_len))

    def _next_asking(self) -> AskingId:
        self._num_askings += 1
        return AskingId(self._num_askings)

    def tell_all(self, message: RetainSession | UnpinPrompt) -> None:
        """Tell every engine something that is not answered. Raises EngineDead if there is none."""
        self._lines.tell_all(message)

    def _ask(self, message: SubmitRequest | PrefetchPrompt) -> None:
        beside: list[AskingId] = []
        if isinstance(message, SubmitRequest) and message.sample_of is not None:
            # Its pages are where the first sample is.
            beside = [asking for _, asking in self._names.askings_of(message.sample_of)]
        self._lines.ask(message, beside)
        self._names.use(message.request_id, message.asking)

    def _leave(self, request: OpenRequest) -> None:
        """Stop listening: abort what still runs, and drop what may come of it."""
        if self._live.pop(request.asking, None) is None:
            return
        # By now its id may stand for a later asking.
        is_in_use = self._names.is_used_by(request.request_id, request.asking)
        if is_in_use and not request.stream.has_ended:
            self._tell_to_end(AbortRequest(asking=request.asking, request_id=request.request_id))

    async def _read_frames(self, line: EngineLine, link: Link) -> None:
        """Sort frames into streams until the link closes."""
        reason = "its reader was stopped"
        try:
            while True:
                frame = await link.receive()
                assert isinstance(frame, TokenFrame), (
                    f"the Scheduler sent a client a {type(frame).__name__}"
                )
                self._route(line, frame)

        except LinkClosed as error:
            reason = str(error) or "the link closed"
        except (Exception, asyncio.CancelledError):
            # Cancelled at the end of its event loop: nobody waits for the requests any more.
            self._on_loss = None
            raise
        finally:
            # Whatever ended the reader, nobody may wait for it.
            self._lose(line, f"The connection to the engine is lost: {reason}. Connect again.")

    def _route(self, line: EngineLine, frame: TokenFrame) -> None:
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
                line.answered(delta.asking)
                self._names.release(delta.request_id, delta.asking)
                self._prefetches.end(delta)

            live = self._live.get(delta.asking)
            if live is not None:
                if live.stream.push(delta, now_s) and not is_last:
                    self._stop(live)
                self._callers.note_news(live)

    def _stop(self, live: OpenRequest) -> None:
        """Note that a stop string ended the output, which the Scheduler cannot know."""
        self._tell_to_end(StopRequest(asking=live.asking, request_id=live.request_id))

    def _tell_to_end(self, message: AbortRequest | StopRequest) -> bool:
        """End an asking; False if there is nobody to tell."""
        self._names.release(message.request_id, message.asking)
        return self._lines.tell(message.asking, message)

    def _lose(self, line: EngineLine, text: str) -> None:
        """Ask elsewhere, now or later, for what was asked over a link."""
        lost = line.lose()
        self._prefetches.fail(lost, lambda: EngineDead(text))
        self._names.forget(lost - self._live.keys())
        if self._on_loss is None:
            self._fail(self._waiting(), lambda: EngineDead(text))
            return
        if not self.is_closed:
            self._ask_waiting()
        self._on_loss(line.engine)

    def _waiting(self) -> list[OpenRequest]:
        return [
            each
            for asking, each in self._live.items()
            if not each.stream.has_ended and self._lines.of(asking) is None
        ]

    def _ask_waiting(self) -> None:
        now_s = time.monotonic()
        for each in self._waiting():
            del self._live[each.asking]
            message = each.ask_again(self._next_asking(), now_s)
            self._live[message.asking] = each
            # If that link is lost, too, its reader says so, and it waits for the next one.
            with contextlib.suppress(EngineDead):
                self._ask(message)

    def _fail(self, requests: list[OpenRequest], error: Callable[[], RaydixError]) -> None:
        for each in requests:
            self._names.release(each.request_id, each.asking)
            each.stream.fail(error())
            if each.note_news():
                each.tell()
