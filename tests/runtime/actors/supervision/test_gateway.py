"""The port for clients on other hosts: whom it lets through, to whom, and what it passes on."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from raydix.errors import ConfigError
from raydix.ids import AskingId, RequestId
from raydix.runtime.actors.engine_record import EngineRecord
from raydix.runtime.actors.links.address import TcpAddress
from raydix.runtime.actors.links.link import Link, LinkClosed, LinkRefused
from raydix.runtime.actors.links.socket_dialer import connect
from raydix.runtime.actors.links.socket_listener import listen
from raydix.runtime.actors.supervision.gateway import Gateway, GatewaySettings
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.client import AbortRequest, TokenFrame
from raydix.runtime.messages.control import ControlCall, ControlResult
from raydix.runtime.messages.hello import Hello, Role
from tests.runtime.actors.links.link_ends import short_folder

SECRET, OWN_SECRET = b"between hosts", b"between actors"
LOOPBACK = TcpAddress("127.0.0.1", 0)
QUESTION = AbortRequest(asking=AskingId(1), request_id=RequestId("r"))
CALL = ControlCall(method="stats", arguments=b"")


def client(seeks: Role | None, role: Role = Role.CLIENT) -> Hello:
    return Hello(role=role, name="afar", incarnation=0, pid=1, seeks=seeks)


@dataclass
class Host:
    """The engine's side: a gateway, a Scheduler whose links tests play, and a Supervisor."""

    gateway: Gateway
    record: EngineRecord
    address: str = ""
    scheduler_links: "asyncio.Queue[Link]" = field(default_factory=asyncio.Queue)

    async def dial(self, seeks: Role | None, secret: bytes = SECRET, role: Role = Role.CLIENT):
        return await connect(f"tcp:{self.address}", client(seeks, role), secret)


async def answer_call(link: Link) -> None:
    with contextlib.suppress(LinkClosed):
        assert await link.receive() == CALL
        link.send(ControlResult(value=b"figures"))


@pytest.fixture
async def host() -> AsyncIterator[Host]:
    with short_folder() as folder:
        record = EngineRecord(
            control_address="unix:/nowhere",
            client_address=f"unix:{folder}/scheduler.sock",
            secret=OWN_SECRET,
        )
        settings = GatewaySettings(address=LOOPBACK, secret=SECRET)
        made = Host(Gateway("mine", settings, record, answer_call), record)
        scheduler = Hello(role=Role.SCHEDULER, name="mine", incarnation=1, pid=1)
        listener = await listen(
            record.client_address, scheduler, OWN_SECRET, made.scheduler_links.put
        )
        made.address = await made.gateway.open(None)
        yield made
        await made.gateway.close()
        await listener.close()


async def test_what_client_and_scheduler_say_is_passed_on_both_ways(host: Host) -> None:
    outer = await host.dial(Role.SCHEDULER)
    inner = await host.scheduler_links.get()
    assert inner.hello == client(Role.SCHEDULER)

    outer.send(QUESTION)
    assert await inner.receive() == QUESTION
    frame = TokenFrame(askings=(AskingId(1),), token_ids=int32_array([7]))
    inner.send(frame)
    received = await outer.receive()
    assert isinstance(received, TokenFrame)
    assert received.askings == frame.askings


@pytest.mark.parametrize("is_client", [True, False])
async def test_the_end_of_either_link_ends_the_other(host: Host, is_client: bool) -> None:
    outer = await host.dial(Role.SCHEDULER)
    inner = await host.scheduler_links.get()
    first, second = (outer, inner) if is_client else (inner, outer)
    first.send(QUESTION)
    first.close()
    assert await second.receive() == QUESTION
    with pytest.raises(LinkClosed):
        await second.receive()


async def test_calls_go_to_the_supervisor(host: Host) -> None:
    link = await host.dial(Role.SUPERVISOR)
    assert link.hello.name == "mine"
    link.send(CALL)
    assert await link.receive() == ControlResult(value=b"figures")


@pytest.mark.parametrize("secret", [b"guess", OWN_SECRET])
async def test_the_secret_of_the_gateway_alone_opens_it(host: Host, secret: bytes) -> None:
    with pytest.raises(LinkRefused):
        await host.dial(Role.SCHEDULER, secret)
    assert host.scheduler_links.empty()


@pytest.mark.parametrize(
    ("role", "seeks"),
    [
        (Role.GPU, Role.SCHEDULER),
        (Role.HOST_MEMORY, Role.SCHEDULER),
        (Role.SUPERVISOR, Role.SCHEDULER),
        (Role.CLIENT, Role.HOST_MEMORY),
        (Role.CLIENT, None),
    ],
)
async def test_who_is_no_client_or_seeks_nobody_here_is_sent_away(
    host: Host, role: Role, seeks: Role | None
) -> None:
    link = await host.dial(seeks, role=role)
    with pytest.raises(LinkClosed):
        await link.receive()
    assert host.scheduler_links.empty()


async def test_a_client_that_does_not_read_makes_the_scheduler_wait(host: Host) -> None:
    outer = await host.dial(Role.SCHEDULER)
    inner = await host.scheduler_links.get()
    frame = TokenFrame(
        askings=tuple(AskingId(i) for i in range(1 << 16)),
        token_ids=int32_array(range(1 << 16)),
    )
    # Sockets, the gateway's and the client's inbox together hold less than this.
    num_sent = 0
    async with asyncio.timeout(20):
        while inner.buffered_bytes < 4 << 20:
            inner.send(frame)
            num_sent += 1
            await asyncio.sleep(0.001)

    for _ in range(num_sent):
        assert isinstance(await outer.receive(), TokenFrame)
    assert not outer.is_closed


async def test_who_has_come_may_stay_when_the_gateway_is_withdrawn(host: Host) -> None:
    outer = await host.dial(Role.SCHEDULER)
    inner = await host.scheduler_links.get()
    host.gateway.withdraw()
    host.gateway.withdraw()
    with pytest.raises(LinkClosed, match="nobody listens"):
        await connect(f"tcp:{host.address}", client(Role.SCHEDULER), SECRET, timeout_s=0.0)
    outer.send(QUESTION)
    assert await inner.receive() == QUESTION


async def test_an_address_that_cannot_be_had_is_an_error_that_says_so(host: Host) -> None:
    taken = GatewaySettings(address=TcpAddress.parse(host.address), secret=SECRET)
    with pytest.raises(ConfigError, match=rf"{host.address} \(another listener lives"):
        await Gateway("other", taken, host.record, answer_call).open(None)
    foreign = GatewaySettings(address=TcpAddress("192.0.2.1", 0), secret=SECRET)
    with pytest.raises(ConfigError, match="Give an address of this host"):
        await Gateway("other", foreign, host.record, answer_call).open(None)


def test_settings_do_not_print_the_secret() -> None:
    assert "between hosts" not in repr(GatewaySettings(address=LOOPBACK, secret=SECRET))
