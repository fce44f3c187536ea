"""Sends a benchmark's requests to a server that speaks OpenAI's interface."""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import aclosing
from typing import Any, Self
from urllib.parse import urlsplit

from raydix.errors import BadRequest, ConfigError, EngineDead, Overloaded, RaydixError
from raydix.runtime.cli.load.requests import BlockPrompt, ChatPrompt, LoadRequest
from raydix.runtime.cli.load.run import OutputCame, Usage

_MAX_QUOTED = 300
_TIMEOUT_S = 3600.0


def base_url(url: str) -> str:
    """What the routes of OpenAI's interface begin with, if people give a server this URL.

    Raises BadRequest for one that is none.
    """
    if not url.startswith(("http://", "https://")):
        raise BadRequest(f"--url is {url!r}; expected http://HOST:PORT/v1, or https.")
    stripped = url.rstrip("/")
    return stripped if urlsplit(stripped).path else f"{stripped}/v1"


class HttpServer:
    """A server. For `async with`."""

    def __init__(self, url: str, api_key: str | None) -> None:
        """`url` is what OpenAI's routes begin with; one without a path means its `/v1`.

        Raises ConfigError without httpx, and BadRequest for what is no URL.
        """
        try:
            import httpx
        except ImportError as error:
            raise ConfigError(
                "--url needs httpx, which is not installed. Run pip install 'raydix[bench]'."
            ) from error

        self._url = base_url(url)
        self._errors = (httpx.HTTPError, httpx.InvalidURL)
        self._client = httpx.AsyncClient(
            headers={} if api_key is None else {"Authorization": f"Bearer {api_key}"},
            timeout=httpx.Timeout(_TIMEOUT_S, connect=10.0),
            # As many connections as there are requests in flight.
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def first_model(self) -> str:
        """The first model that it names. Raises RaydixError if it names none."""
        place = f"{self._url}/models"
        try:
            answer = await self._client.get(place)
            if answer.status_code != 200:
                raise _refusal(place, answer.status_code, answer.text)
            return str(answer.json()["data"][0]["id"])
        except self._errors as error:
            raise EngineDead(f"Nobody answers at {place} ({_named(error)}).") from error
        except (ValueError, LookupError, TypeError) as error:
            raise BadRequest(
                f"{place} names no model. Does --url name what OpenAI's routes begin with, such as "
                "http://HOST:PORT/v1? Else give --model."
            ) from error

    async def events(
        self, route: str, body: dict[str, Any]
    ) -> AsyncGenerator[dict[str, Any], None]:
        """The chunks of a streamed answer. Raises RaydixError if there is none."""
        place = f"{self._url}/{route}"
        try:
            async with self._client.stream("POST", place, json=body) as answer:
                if answer.status_code != 200:
                    text = (await answer.aread()).decode(errors="replace")
                    raise _refusal(place, answer.status_code, text)
                async for line in _lines(answer.aiter_bytes()):
                    data = line.removeprefix(b"data:").strip()
                    if line.startswith(b"data:") and data != b"[DONE]":
                        yield _object(data)
        except (*self._errors, ValueError) as error:
            raise EngineDead(f"{place}: {_named(error)}") from error


class HttpSender:
    """A `Sender` that asks an HTTP server."""

    def __init__(
        self, server: HttpServer, fields: Mapping[str, Any], cache_salts: Iterator[str | None]
    ) -> None:
        """Lay `fields` over the body of each request.

        cache_salts: one for each; None: the field is left out, as only some servers know it.
        """
        self._server = server
        self._fields = dict(fields)
        self._cache_salts = cache_salts

    async def stream(self, request: LoadRequest) -> AsyncGenerator[OutputCame | Usage, None]:
        """Post the request and read its events."""
        usage = None
        async with aclosing(self._server.events(*self._asked(request))) as events:
            async for event in events:
                if "error" in event:
                    raise EngineDead(_quoted(event["error"]))
                if any(map(_has_output, event.get("choices") or ())):
                    yield OutputCame()
                usage = event.get("usage") or usage

        if usage is None:
            raise BadRequest("The server told no usage. It must know stream_options.include_usage.")
        try:
            told = _usage_of(usage)
        except (LookupError, TypeError, ValueError) as error:
            raise BadRequest(f"The server's usage is {_quoted(usage)}: {_named(error)}.") from error
        yield told

    def _asked(self, request: LoadRequest) -> tuple[str, dict[str, Any]]:
        """The route, and the body of a request."""
        body: dict[str, Any] = {
            "temperature": 0.0,
            "max_tokens": request.output_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        salt = next(self._cache_salts)
        if salt is not None:
            body["cache_salt"] = salt
        body |= self._fields

        match request.prompt:
            case ChatPrompt():
                return "chat/completions", {**body, "messages": list(request.prompt.messages)}
            case BlockPrompt():
                return "completions", {**body, "prompt": request.prompt.token_ids()}
            case str():
                return "completions", {**body, "prompt": request.prompt}
            case _:
                return "completions", {**body, "prompt": list(request.prompt)}


async def _lines(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Lines as server-sent events have them.

    Not httpx's, which end at U+2028 and others, too: JSON may hold those as they are.
    """
    rest = b""
    async for part in parts:
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            yield line
    yield rest


def _object(data: bytes) -> dict[str, Any]:
    """A chunk's JSON. Raises ValueError if it is none."""
    value = json.loads(data)
    if not isinstance(value, dict):
        raise ValueError(f"a chunk is {_quoted(value)}")
    return value


def _has_output(choice: Mapping[str, Any]) -> bool:
    """A chat's first chunk has the role alone."""
    if "delta" in choice:
        delta = choice["delta"] or {}
        return any(value for name, value in delta.items() if name != "role")
    return True


def _usage_of(usage: Mapping[str, Any]) -> Usage:
    """The usage that a server tells: some tell no tier, some no cached tokens."""
    num_prompt = int(usage["prompt_tokens"])
    details = usage.get("prompt_tokens_details") or {}
    by_source = details.get("cached_tokens_by_source")
    if by_source is None and details.get("cached_tokens") is not None:
        num_cached = int(details["cached_tokens"])
        by_source = {"cached": num_cached, "computed": num_prompt - num_cached}
    return Usage(
        num_prompt_tokens=num_prompt,
        num_output_tokens=int(usage["completion_tokens"]),
        tokens_by_source=by_source or {},
    )


def _refusal(place: str, status: int, text: str) -> RaydixError:
    message = f"{place} answers {status}: {_quoted(text)}"
    if status == 401:
        message += " The key is taken from OPENAI_API_KEY of the environment."
    if status in (429, 503):
        return Overloaded(message)
    return BadRequest(message) if 400 <= status < 500 else EngineDead(message)


def _quoted(value: object) -> str:
    return " ".join(str(value).split())[:_MAX_QUOTED]


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {_quoted(error)}"
