"""What a handle asks of a model, whichever engines serve it: requests, and what concerns them."""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from raydix.runtime.api.engine_client import EngineClient
from raydix.runtime.api.engine_connection import EngineConnection
from raydix.runtime.api.model_limits import ModelLimits
from raydix.runtime.api.outputs import RequestOutput
from raydix.runtime.api.pins import Pins
from raydix.runtime.api.prefetches import Prefetches
from raydix.runtime.api.prompts import Prompt, variables_of
from raydix.runtime.api.request_options import RequestOptions
from raydix.runtime.api.retention import hint_for, retention_of
from raydix.runtime.api.routing_figures import RoutingFigures
from raydix.runtime.api.sampling_params import SamplingParams


class ModelHandle(ABC):
    """Sends requests over a connection to engines of one model."""

    def __init__(self, connection: EngineConnection) -> None:
        self._connection = connection
        self.pins = Pins(self)
        """Prompts whose pages stay in L2 for a while."""
        self.prefetches = Prefetches(self)
        """Prefetches that nobody waits for."""

    @property
    def routing_figures(self) -> RoutingFigures:
        """Where requests went of those that were sent to one of several engines."""
        return self._connection.routing_figures

    @abstractmethod
    async def stats_by_engine(self) -> dict[str, dict[str, Any] | None]:
        """Counters and gauges of each engine, by its name; None for one that is away."""

    @abstractmethod
    async def prefetch_state(self, prefetch_id: str) -> dict[str, Any] | None:
        """What the engines know of a prefetch; see `Prefetches.state`."""

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | Mapping[str, Any] | None = None,
        request_id: str | None = None,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
        session_id: str | None = None,
        routing_key: str | None = None,
        deadline_s: float | None = None,
        sample_of: str | None = None,
        retention: Mapping[str, Any] | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Stream the outputs of one request; the last one, and only that, is `finished`.

        Leaving the loop, closing the generator or cancelling the task aborts the request.

        prompt: a str, token ids, `{"prompt": str}`, `{"prompt_token_ids": ids}`, or a conversation
        as `{"messages": [...]}`, perhaps with `tools` and `chat_template_kwargs`, as of `chat`.
        priority: lower runs first. cache_salt: requests share cached prefixes only with those of
        the same salt; what is before its first slash is the name of a tenant, which is bounded and
        shown as one. session_id: prefer the rank that served this session last.
        routing_key: of requests that choose the same experts, say those of one task; with
        scheduler.policy `routing_key` they run together.
        deadline_s: seconds from submission; past it DeadlineExceeded is raised with the output so
        far as `partial`. sample_of: a request of this handle with the same prompt, whose pages this
        one is to share; with `n` that goes by itself. retention: what comes next of the session
        once this has ended, as of `retain`; without a session, of the pages of this prompt.

        Raises BadRequest, PromptTooLong, Overloaded, DeadlineExceeded, EngineDead, and Cancelled if
        this handle is disconnected meanwhile. After EngineDead the next call connects anew.
        """
        client = await self.connected()
        options = RequestOptions(
            priority=priority,
            cache_salt=cache_salt,
            session_id=session_id,
            routing_key=routing_key,
            deadline_s=deadline_s,
            sample_of=sample_of,
            retention=retention_of(retention),
        )
        async with contextlib.aclosing(
            client.generate(prompt, sampling_params, request_id, options)
        ) as outputs:
            async for output in outputs:
                yield output

    async def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        sampling_params: SamplingParams | Mapping[str, Any] | None = None,
        request_id: str | None = None,
        *,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Stream the answer to a conversation, written out by the checkpoint's chat template.

        messages: dicts with `role` and `content`. chat_template_kwargs: variables of the template,
        such as `tools` and `add_generation_prompt` (True unless given). options: the keyword
        arguments of `generate`.
        """
        variables = variables_of(chat_template_kwargs)
        prompt = {"messages": messages, "chat_template_kwargs": variables}
        async with contextlib.aclosing(
            self.generate(prompt, sampling_params, request_id, **options)
        ) as outputs:
            async for output in outputs:
                yield output

    async def apply_chat_template(
        self, messages: Sequence[Mapping[str, Any]], **template_arguments: Any
    ) -> list[int]:
        """Token ids of a conversation, as `chat` would send them. Raises BadRequest."""
        desk = (await self.connected()).texts
        return await desk.encode_chat(messages, template_arguments)

    async def encode(self, text: str) -> list[int]:
        """Token ids of a prompt, as `generate` would send them. Raises BadRequest."""
        return await (await self.connected()).texts.encode(text)

    async def decode(self, token_ids: Sequence[int]) -> str:
        """Text of token ids, special tokens among it. Raises BadRequest."""
        return await (await self.connected()).texts.decode(token_ids)

    async def limits(self) -> ModelLimits:
        """Read what the served model allows. Connects anew if the connection was lost.

        Raises EngineDead if the engine does not answer.
        """
        return (await self._connection.client()).limits

    async def prefetch(self, prompt: Prompt, *, cache_salt: str | None = None) -> dict[str, int]:
        """Bring to L2 what L3 has of a prompt, ahead of the requests that will start with it.

        Computes nothing, and requests go first. Returns once it is there: the prompt's tokens by
        source, as `cached_tokens_by_source` of a request would have told them. `l3` was fetched;
        `computed:REASON` is in no tier, or did not come, for that reason. Without L3 nothing is
        fetched. Cancelling the task ends the prefetch.

        Raises BadRequest (also if the engine has no L2 or caches no prefixes), PromptTooLong,
        Overloaded (256 prefetches wait), EngineDead, and Cancelled if this handle is disconnected
        meanwhile.
        """
        return await (await self.connected()).prefetch(prompt, cache_salt)

    async def retain(
        self, session_id: str, retention: Mapping[str, Any], *, cache_salt: str | None = None
    ) -> None:
        """Tell what comes next of a session: a hint of which pages go first, never an order.

        retention: `{"end": True}`, `{"keep_s": SECONDS}` or `{"resume_in_s": SECONDS}`; it counts
        from now, or from the end of the last request of the session that lives. cache_salt: that of
        the session's requests. Raises BadRequest and EngineDead.
        """
        message = hint_for(session_id, retention, cache_salt)
        (await self.connected()).tell_all(message)

    async def abort(self, request_id: str) -> None:
        """End a request of this handle; other ids are ignored.

        Its stream yields a finished output with reason `abort`.
        """
        client = self._connection.client_at_hand()
        if client is not None:
            client.abort(request_id)

    async def connected(self) -> EngineClient:
        """The open connection; a new one, to whatever engine has the name now, if there is none.

        While an engine may come back, the one without a link over which open requests wait, too:
        what is asked over it waits as they do. Raises EngineDead if no engine is left.
        """
        return await self._connection.client_of_requests()

    async def disconnect(self) -> None:
        """Leave the engine running. Open streams raise Cancelled and their requests are aborted."""
        await self._connection.disconnect()
