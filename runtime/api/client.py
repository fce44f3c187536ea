"""The asynchronous engine handle: start or reach an engine, and stream tokens from it."""

import contextlib
import uuid
from collections.abc import AsyncGenerator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self

from raydix.runtime.actors.bootstrap.remote import gateway_settings
from raydix.runtime.actors.supervision.restarts import DRAIN_S, Supervision
from raydix.runtime.api.engine_client import EngineClient
from raydix.runtime.api.engine_connection import EngineConnection
from raydix.runtime.api.engine_place import EnginePlace
from raydix.runtime.api.engine_start import begin_tokenizer, start_or_undo
from raydix.runtime.api.explained import explained
from raydix.runtime.api.model_limits import ModelLimits
from raydix.runtime.api.outputs import RequestOutput
from raydix.runtime.api.pins import Pins
from raydix.runtime.api.prompts import Prompt, variables_of
from raydix.runtime.api.request_options import RequestOptions, check_switch
from raydix.runtime.api.retention import hint_for, retention_of
from raydix.runtime.api.sampling_params import SamplingParams
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.config.loading import load_config
from raydix.runtime.config.paths import require_absolute_l3, resolve_l3


class AsyncLLM:
    """A handle on one engine, known by its name. Works in plain asyncio and in async Ray actors.

    Make one with `start` or `connect`. It can be pickled: the copy connects by name on its first
    use. After a lost connection requests go on over a new one. It belongs to the event loop on
    which it is used, until that runs no more. At the end of its `async with` an engine that it has
    started is shut down; one that it has reached goes on.
    """

    def __init__(
        self,
        name: str = "raydix",
        address: str | None = None,
        secret_file: str | Path | None = None,
        cluster: str | None = None,
    ) -> None:
        """A handle that connects when first used; the arguments are those of `connect`."""
        self.name = name
        self.place = EnginePlace(name, address, secret_file, cluster)
        self._connection = EngineConnection(self.place)
        self.pins = Pins(self)
        """Prompts whose pages stay in L2 for a while."""

    @classmethod
    async def start(
        cls,
        source: str | Path | Mapping[str, Any] | EngineConfig | None = None,
        *,
        name: str | None = None,
        address: str | None = None,
        drain_s: float = DRAIN_S,
        listen: str | None = None,
        secret_file: str | Path | None = None,
        **sections: Any,
    ) -> Self:
        """Start an engine and connect to it.

        source: a YAML file, a checkpoint folder, `ORG/NAME` on the Hub, or a dict with the
        configuration; `sections` (`cache={...}`) are laid over it. name: by which others reach it,
        one engine of each user and host; None: a made-up one. address: of the Ray cluster; None:
        the one at hand, else a private one. drain_s: when the engine is shut down, how long
        requests may go on, and then writes to L3; new requests are refused meanwhile. listen:
        `HOST:PORT` for clients on other hosts, who must know the secret, which is found as in
        `connect`. Without one it must be a loopback address, and only this user may connect. The
        engine ends with this process.

        Raises ConfigError, CheckpointError or EngineDead.
        """
        gateway = gateway_settings(listen, secret_file)
        config = load_config(source, sections)
        name = f"private-{uuid.uuid4().hex[:8]}" if name is None else name
        supervision = Supervision(drain_timeout_s=drain_s)
        # A broken tokenizer is reported before the weights are read, which may take minutes.
        tokenizer = begin_tokenizer(config.model)
        handle = await start_or_undo(
            config, name, address, supervision, gateway=gateway, tokenizer=tokenizer
        )

        engine = cls(name, cluster=address)
        engine._connection.adopt(handle, config.model.path, tokenizer.result())
        # The caller has no handle yet to shut it down, so a failure from here on ends the engine.
        try:
            await engine.connected()
        except BaseException:
            await handle.shutdown()
            raise
        return engine

    @classmethod
    async def connect(
        cls,
        name: str = "raydix",
        address: str | None = None,
        *,
        secret_file: str | Path | None = None,
        cluster: str | None = None,
    ) -> Self:
        """Reach a running engine. Raises EngineDead if there is none of this name.

        address: `HOST:PORT` where the engine listens, on whatever host; nothing of Ray is needed.
        None: it is on this host. secret_file: a file of mode 0600 with the secret that an engine
        elsewhere asks for; None: it is in RAYDIX_SECRET, or in the file that RAYDIX_SECRET_FILE
        names. TLS is used where RAY_USE_TLS is set, with Ray's certificates. cluster: find the
        engine through the Ray cluster of this address, which must have it on this host.
        """
        engine = cls(name, address, secret_file, cluster)
        await engine.connected()
        return engine

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
        the same salt. session_id: prefer the rank that served this session last.
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
        return (await self.connected()).limits

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
        (await self.connected()).send(message)

    async def abort(self, request_id: str) -> None:
        """End a request of this handle; other ids are ignored.

        Its stream yields a finished output with reason `abort`.
        """
        client = self._connection.client_at_hand()
        if client is not None:
            client.abort(request_id)

    async def stats(self) -> dict[str, Any]:
        """Counters and gauges of the engine."""
        stats: dict[str, Any] = await self._connection.call("stats")
        return stats

    async def flush(self, l3: bool = False) -> dict[str, Any]:
        """Drop all cached pages of L1 and L2 that no request uses; what was dropped.

        l3: drop this engine's stored objects, too.
        """
        flushed: dict[str, Any] = await self._connection.call("flush", check_switch("l3", l3))
        return flushed

    async def attach_storage(self, section: Mapping[str, Any]) -> dict[str, Any]:
        """Use another L3 backend from now on, while requests run.

        section: as `cache.l3` of a configuration; a relative path starts at this process's working
        directory, and is refused where the engine may be on another host. The former backend is
        left once its operations have ended. Returns the names of both backends.

        Raises ConfigError if the section is wrong or its backend cannot work, EngineDead if it
        cannot be put to use in time; then the engine goes on with what it had.
        """
        if self.place.address is not None:
            require_absolute_l3(section)
        own = resolve_l3(section, Path.cwd())
        names: dict[str, Any] = await self._connection.call("attach_storage", own)
        return names

    async def detach_storage(self) -> dict[str, Any]:
        """Go on without L3, while requests run; what it holds stays there.

        Returns the name of the backend that was in use, or None.
        """
        names: dict[str, Any] = await self._connection.call("detach_storage")
        return names

    async def explain(self, request_id: str) -> dict[str, Any]:
        """Tell where each range of a request's prompt came from, or why it was computed.

        request_id: of one of the engine's last 1,024 requests, or the id of an HTTP answer. Raises
        UnknownRequest for any other.
        """
        return await explained(partial(self._connection.call, "explain"), str(request_id))

    async def listens_at(self) -> str | None:
        """`HOST:PORT` where the engine listens for clients on other hosts; None: it does not."""
        return (await self._connection.found()).listens_at

    async def wait_ended(self) -> None:
        """Wait until the engine gives up, is shut down or is killed. Raises EngineDead: why."""
        await (await self._connection.found()).wait_ended()

    async def connected(self) -> EngineClient:
        """The open connection; a new one, to whatever engine has the name now, if there is none."""
        return await self._connection.client()

    async def disconnect(self) -> None:
        """Leave the engine running. Open streams raise Cancelled and their requests are aborted."""
        await self._connection.disconnect()

    async def shutdown(self) -> None:
        """Stop the engine, whoever started it. Open streams of this handle raise Cancelled.

        Those of others may end first, for as long as the engine was started to drain. May be called
        twice, also at the same time.
        """
        await self._connection.shutdown()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._connection.has_started_engine:
            await self.shutdown()
        else:
            await self.disconnect()

    def __reduce__(self) -> tuple[type[Self], tuple[Any, ...]]:
        place = self.place
        return type(self), (place.name, place.address, place.secret_file, place.cluster)
