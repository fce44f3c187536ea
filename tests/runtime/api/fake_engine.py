"""An engine that is a script: a client's link, with the Scheduler's part played by the test."""

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from raydix.errors import EngineDead
from raydix.ids import AskingId, RequestId
from raydix.runtime.actors.bootstrap.start_control import StartControl
from raydix.runtime.actors.engine_record import EngineRecord
from raydix.runtime.actors.links.link import LinkClosed
from raydix.runtime.actors.supervision.engine_facts import ClientFacts
from raydix.runtime.actors.supervision.gateway import GatewaySettings
from raydix.runtime.actors.supervision.restarts import Supervision
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.client import (
    AbortRequest,
    FailureKind,
    FinishReason,
    PrefetchPrompt,
    RequestDelta,
    RequestFailure,
    SubmitRequest,
    TokenFrame,
)
from raydix.runtime.messages.hello import Hello

CLOSED = object()
RECORD = EngineRecord(control_address="fake:1", client_address="fake:2", secret=b"secret")


class FakeLink:
    """Keeps what was sent; `deliver` brings a frame, `break_off` ends the other side."""

    def __init__(self, answer: Callable[["FakeLink", Any], None] | None = None) -> None:
        self.sent: list[Any] = []
        self.is_closed = False
        self._answer = answer
        self._inbox: asyncio.Queue[Any] = asyncio.Queue()

    def send(self, message: Any) -> None:
        if self.is_closed:
            raise LinkClosed("the link was closed")
        self.sent.append(message)
        if self._answer is not None:
            self._answer(self, message)

    async def receive(self) -> Any:
        message = await self._inbox.get()
        if message is CLOSED:
            raise LinkClosed("the peer is gone")
        return message

    def close(self) -> None:
        self.is_closed = True

    def cut(self) -> None:
        self.is_closed = True

    def deliver(self, *deltas: RequestDelta) -> None:
        """News, as `delta` makes them, of the asking that each names, else of its id's latest."""
        named = [
            each if each.asking else replace(each, asking=self.asking_of(each.request_id))
            for each in deltas
        ]
        self._inbox.put_nowait(TokenFrame(deltas=tuple(named)))

    def asking_of(self, request_id: str) -> AskingId:
        """The number of the latest request or prefetch that was sent under this id."""
        asked = self.sent_of(SubmitRequest) + self.sent_of(PrefetchPrompt)
        return max(each.asking for each in asked if each.request_id == request_id)

    def break_off(self) -> None:
        self.is_closed = True
        self._inbox.put_nowait(CLOSED)

    def sent_of(self, kind: type) -> list[Any]:
        return [each for each in self.sent if isinstance(each, kind)]


def delta(
    request_id: str, token_ids: Sequence[int] = (), *, asking: int = 0, **fields: Any
) -> RequestDelta:
    """News of a request; without an `asking` they are of the latest under the request's id."""
    return RequestDelta(
        asking=AskingId(asking),
        request_id=RequestId(request_id),
        token_ids=int32_array(token_ids),
        **fields,
    )


def failed(
    request_id: str, kind: FailureKind, message: str = "because", retry_after_s: float = 0.0
) -> RequestDelta:
    return delta(
        request_id, failure=RequestFailure(kind=kind, message=message, retry_after_s=retry_after_s)
    )


def echo(link: FakeLink, message: Any) -> None:
    """Answer a request with the rest of its prompt, a prefetch and an abort with the last delta."""
    match message:
        case SubmitRequest():
            rest = message.token_ids.tolist()[len(message.earlier_output) :]
            for each in _echoes(message.request_id, rest):
                link.deliver(each)

        case PrefetchPrompt():
            sources = {"l3": len(message.token_ids)}
            last = delta(
                message.request_id, cached_tokens_by_source=sources, finished=FinishReason.PREFETCH
            )
            link.deliver(last)

        case AbortRequest():
            link.deliver(delta(message.request_id, finished=FinishReason.ABORT))


def _echoes(request_id: str, token_ids: Sequence[int]) -> Iterator[RequestDelta]:
    """A delta per token: the first tells the sources, the last ends the request."""
    for i, token_id in enumerate(token_ids):
        is_last = i == len(token_ids) - 1
        yield delta(
            request_id,
            [token_id],
            cached_tokens_by_source={"l1": 0, "computed:not_found": len(token_ids)}
            if i == 0
            else None,
            finished=FinishReason.LENGTH if is_last else None,
        )


@dataclass
class FakeHandle:
    """What `start_engine` and `find_engine` give."""

    model_path: str
    record: EngineRecord = RECORD
    listens_at: str | None = None
    max_model_len: int = 64
    vocab_size: int = 300
    eos_token_ids: tuple[int, ...] = (256,)
    fingerprint: str = "weights"
    tokenizer: str | None = None
    calls: list[tuple[Any, ...]] = field(default_factory=list)
    known: set[str] | None = None
    """The requests that it can explain; None: all."""
    is_shut_down: bool = False
    is_dead: bool = False
    is_silent: bool = False
    num_unanswered: int = 0
    end: asyncio.Event = field(default_factory=asyncio.Event)
    reason: EngineDead = field(
        default_factory=lambda: EngineDead("engine has given up: for a reason")
    )

    @property
    def facts(self) -> ClientFacts:
        return ClientFacts(
            name="raydix",
            model_path=self.model_path,
            fingerprint=self.fingerprint,
            max_model_len=self.max_model_len,
            vocab_size=self.vocab_size,
            max_waiting_requests=128,
            eos_token_ids=self.eos_token_ids,
            tokenizer=self.tokenizer,
        )

    async def wait_ended(self) -> None:
        await self.end.wait()
        raise self.reason

    async def call(self, method: str, *arguments: Any) -> dict[str, Any] | None:
        if self.is_dead:
            raise EngineDead("the Supervisor is gone")
        if self.is_silent:
            self.num_unanswered += 1
            await asyncio.get_running_loop().create_future()
        self.calls.append((method, *arguments))
        if method == "explain" and self.known is not None and arguments[0] not in self.known:
            return None
        return {} if method == "tokenizer_files" else {"method": method}

    async def shutdown(self) -> None:
        self.is_shut_down = True


class FakeCluster:
    """Stands in for what starts and finds engines; keeps the links that clients opened to them."""

    def __init__(self, model_path: str) -> None:
        self.handle = FakeHandle(model_path)
        self.engines: dict[str, FakeHandle] = {}
        self.configs: list[Any] = []
        self.supervisions: list[Supervision] = []
        self.gateways: list[GatewaySettings | None] = []
        self.links: list[FakeLink] = []
        self.dialled: list[EngineRecord] = []
        """The engine to which each link was opened, ..."""
        self.hellos: list[Hello] = []
        """... and as whom."""
        self.refuses_links = False
        self.frozen: dict[str, threading.Event] = {}
        """The engines that cannot be found until their event, as if they were stopped."""
        self.answer: Callable[[FakeLink, Any], None] = echo

    def install(self, monkeypatch: Any) -> None:
        """Replace what `raydix.runtime.api.client` imports from the launching side."""
        monkeypatch.setattr("raydix.runtime.api.engine_start.start_engine", self._start)
        monkeypatch.setattr("raydix.runtime.api.engine_place.find_engine", self._find)
        monkeypatch.setattr("raydix.runtime.api.engine_place.dial_engine", self._connect)

    def _start(
        self,
        config: Any,
        name: str,
        address: str | None,
        supervision: Supervision,
        gateway: GatewaySettings | None,
        control: StartControl,
    ) -> FakeHandle:
        control.wait_precondition()
        self.gateways.append(gateway)
        self.configs.append((config, address))
        self.supervisions.append(supervision)
        self.engines[name] = self.handle
        return self.handle

    def _find(self, name: str, address: str | None) -> FakeHandle:
        if name in self.frozen:
            self.frozen[name].wait()
        if name not in self.engines:
            raise EngineDead(f"there is no engine {name!r} at {address}")
        return self.engines[name]

    async def _connect(self, record: EngineRecord, hello: Hello) -> FakeLink:
        if self.refuses_links:
            raise LinkClosed("nobody listens")
        self.links.append(FakeLink(self.answer))
        self.dialled.append(record)
        self.hellos.append(hello)
        return self.links[-1]

    def add(self, name: str) -> FakeHandle:
        """One more engine of the model, with an address of its own."""
        record = replace(RECORD, client_address=f"fake:{name}")
        self.engines[name] = FakeHandle(self.handle.model_path, record)
        return self.engines[name]

    def links_to(self, name: str) -> list[FakeLink]:
        """The links that were opened to an engine that was added."""
        told = zip(self.links, self.dialled, strict=True)
        return [link for link, record in told if record.client_address == f"fake:{name}"]
