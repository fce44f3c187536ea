"""One client of the Scheduler: requests go out, and frames of tokens come back."""

import asyncio
import contextlib
import logging
import math
import time
import uuid
from collections.abc import AsyncGenerator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from raydix.errors import EngineDead, RaydixError
from raydix.ids import PinId, RequestId
from raydix.runtime.actors.links.link import Link
from raydix.runtime.api.askings import Askings, OnLoss
from raydix.runtime.api.engine_line import ChooseLine
from raydix.runtime.api.line_choice import SessionLines
from raydix.runtime.api.model_limits import ModelLimits
from raydix.runtime.api.open_requests import OnNews, OpenRequest, RequestGroup
from raydix.runtime.api.outputs import RequestOutput
from raydix.runtime.api.pin_names import new_pin_name
from raydix.runtime.api.prompts import Prompt, TokenizedPrompt, check_token_ids
from raydix.runtime.api.request_options import RequestOptions, check_text
from raydix.runtime.api.request_stream import RequestStream, StreamedRequest
from raydix.runtime.api.samples import id_of_sample, outputs_of_samples, params_of_sample
from raydix.runtime.api.sampling_params import SamplingParams
from raydix.runtime.api.submission import submission_of
from raydix.runtime.api.text_desk import TextDesk
from raydix.runtime.api.tokenizer import Tokenizer
from raydix.runtime.messages.client import (
    PrefetchPrompt,
    RequestDelta,
    RetainSession,
    UnpinPrompt,
)
from raydix.runtime.messages.tenants import tenant_of

logger = logging.getLogger(__name__)


class EngineClient:
    """Sends requests to engines of one model and hands each caller its outputs.

    Owns: its askings. Must be made on a running loop and used on that loop alone. What a slow
    caller has not taken is merged into one output. Callers notice a pause when a link is lost.

    A request id is free again as soon as the Scheduler has been told to end its request.
    """

    def __init__(
        self,
        limits: ModelLimits,
        tokenizer: Tokenizer | None,
        on_loss: OnLoss | None = None,
        choice: ChooseLine | None = None,
    ) -> None:
        """`on_loss`: told which engine's link is lost; what waits needs another, or `give_up`.
        `choice`: of the engine of each request; None: by session.
        """
        self.limits = limits
        self.texts = TextDesk(tokenizer, limits.max_model_len)
        self._askings = Askings(on_loss, choice or SessionLines())
        self._begun: set[asyncio.Task[RequestDelta]] = set()
        """The prefetches that go on though their callers do other things."""

    @property
    def is_closed(self) -> bool:
        """No link is there: no request can be sent, and those that were open wait or failed."""
        return self._askings.is_closed

    @property
    def has_waiting(self) -> bool:
        """Whether requests wait for a link."""
        return self._askings.has_waiting

    @property
    def num_taking(self) -> int:
        """How many engines take requests from this client."""
        return self._askings.num_taking

    def has_link(self, engine: str) -> bool:
        """Whether there is a link to this engine."""
        return self._askings.has_link(engine)

    def use(self, engine: str, link: Link) -> None:
        """Ask an engine of the model over this link, too; what waits is asked for at once."""
        self._askings.use(engine, link)

    def give_up(self, error: RaydixError) -> None:
        """There will be no other link: what waits fails with `error`."""
        self._askings.give_up(error)

    @property
    def has_tokenizer(self) -> bool:
        """Whether outputs have text."""
        return self.texts.tokenizer is not None

    @property
    def num_requests(self) -> int:
        """Requests that no Scheduler has ended yet."""
        return self._askings.num_requests

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
        self.limits.check_num_requests(params.n, options.cache_salt)
        names = [id_of_sample(name, index) for index in range(params.n)]
        with self._askings.names.reserved(names):
            tokenized = await self.tokenized(prompt)
        joined = replace(options, sample_of=name)
        news = asyncio.Event()

        with self._askings.names.together(names), RequestGroup(news.set) as group:
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
        with self._askings.names.reserved([name]):
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
            self._askings.next(),
            request_id,
            prompt.token_ids,
            params,
            options,
            limits=self.limits,
            has_tokenizer=self.has_tokenizer,
        )
        self._askings.names.require_free(request_id)
        submitted_s = time.monotonic()
        # Sent first, as that may fail; and what is made below then delays the request by nothing.
        self._askings.submit(submission)
        route = self._askings.route_of(submission.asking)

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
            submission,
            stream,
            on_news,
            self._askings.leave,
            ends_s=submitted_s + deadline_s,
            route=route,
        )
        self._askings.listen(request)
        return request

    async def prefetch(self, prompt: Prompt, cache_salt: str | None = None) -> dict[str, int]:
        """Prefetch as `AsyncLLM.prefetch` does. Cancelling the task ends it."""
        return (await self.bring(prompt, cache_salt, None)).cached_tokens_by_source or {}

    async def bring(self, prompt: Prompt, salt: str | None, pin_s: float | None) -> RequestDelta:
        """Prefetch, and pin for `pin_s` what is there then; returns the last delta."""
        message = await self._bringing(prompt, salt, pin_s)
        try:
            return await self._askings.bring(message)
        except asyncio.CancelledError:
            if pin_s is not None:
                self._unpin(message)
            raise

    async def _bringing(
        self, prompt: Prompt, salt: str | None, pin_s: float | None
    ) -> PrefetchPrompt:
        token_ids = (await self.tokenized(prompt)).token_ids
        check_text("cache_salt", salt)
        return PrefetchPrompt(
            asking=self._askings.next(),
            request_id=RequestId(new_pin_name(token_ids, salt)),
            token_ids=token_ids,
            cache_salt=salt,
            pin_s=pin_s,
        )

    async def begin_prefetch(self, prompt: Prompt, salt: str | None = None) -> str:
        """Prefetch beyond this call; returns the prefetch's name once an engine has taken it in."""
        message = await self._bringing(prompt, salt, None)
        taken = asyncio.get_running_loop().create_future()
        bringing = asyncio.create_task(self._askings.bring(message, taken), name="raydix-prefetch")
        self._begun.add(bringing)
        bringing.add_done_callback(self._end_begun)
        try:
            await asyncio.wait((bringing, taken), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            bringing.cancel()
            raise
        if bringing.done():
            bringing.result()
        return message.request_id

    def _end_begun(self, bringing: asyncio.Task[RequestDelta]) -> None:
        self._begun.discard(bringing)
        if not bringing.cancelled() and (error := bringing.exception()) is not None:
            logger.debug("a prefetch that nobody waits for has failed: %s", error)

    def _unpin(self, message: PrefetchPrompt) -> None:
        """Release a pin that may be made by now, though nobody will hear its name."""
        unpin = UnpinPrompt(pin_id=PinId(message.request_id), tenant=tenant_of(message.cache_salt))
        # What there is no engine for ends with its time.
        with contextlib.suppress(EngineDead):
            self.tell_all(unpin)

    def abort(self, request_id: str) -> None:
        """End a request; ids that are not in use are ignored.

        Its stream yields a finished output with reason `abort`.
        """
        self._askings.abort(request_id)

    async def close(self) -> None:
        """Close all links; open streams raise Cancelled, and Schedulers abort their requests."""
        self.texts.close()
        await self._askings.close()

    def abandon(self) -> None:
        """Close the links from outside of their loop, which runs no more.

        Streams may not be told.
        """
        self._askings.abandon()

    def tell_all(self, message: RetainSession | UnpinPrompt) -> None:
        """Tell every engine something that is not answered. Raises EngineDead if there is none."""
        self._askings.tell_all(message)

    async def tokenized(self, prompt: Prompt, tenant: str | None = None) -> TokenizedPrompt:
        """The prompt as a request takes it; `tenant`: whose turn it is to tokenise text.

        Raises BadRequest and PromptTooLong.
        """
        text, token_ids = await self.texts.token_ids_of(prompt, tenant)
        vocab_size, max_model_len = self.limits.vocab_size, self.limits.max_model_len
        return TokenizedPrompt(text, check_token_ids(token_ids, vocab_size, max_model_len))
