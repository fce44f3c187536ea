"""Control calls to an engine's Supervisor over a link of their own: Ray is not needed."""

import asyncio
import os
import uuid
from typing import Any

from raydix.errors import (
    AccountingError,
    BadRequest,
    CalledOff,
    CheckpointError,
    ConfigError,
    EngineAsleep,
    EngineDead,
    EngineStopped,
    RaydixError,
)
from raydix.runtime.actors.engine_record import EngineRecord
from raydix.runtime.actors.l2_record import L2Record
from raydix.runtime.actors.links.link import Link, LinkClosed, LinkRefused, LinkSilent
from raydix.runtime.actors.links.socket_dialer import connect
from raydix.runtime.actors.supervision.engine_facts import ClientFacts
from raydix.runtime.messages.control import (
    ControlCall,
    ControlErrorKind,
    ControlFailure,
    ControlResult,
    pack_values,
    unpack_values,
)
from raydix.runtime.messages.hello import Hello, Role

DIAL_S = 10.0
"""A Scheduler may be being restarted."""
_ANSWER_S = 10.0
_CONNECT_S = 0.5
"""A Supervisor listens from before it can be found until it ends."""
_ERRORS: dict[ControlErrorKind, type[RaydixError]] = {
    ControlErrorKind.BAD_REQUEST: BadRequest,
    ControlErrorKind.CONFIG: ConfigError,
    ControlErrorKind.CHECKPOINT: CheckpointError,
    ControlErrorKind.ACCOUNTING: AccountingError,
    ControlErrorKind.CALLED_OFF: CalledOff,
    ControlErrorKind.ENGINE_ASLEEP: EngineAsleep,
    ControlErrorKind.ENGINE_DEAD: EngineDead,
    ControlErrorKind.ENGINE_STOPPED: EngineStopped,
    ControlErrorKind.OTHER: RaydixError,
}


class EngineAway(EngineDead):
    """The engine cannot be reached: it may have ended, or only the way to it be lost."""


async def dial_engine(record: EngineRecord, hello: Hello, timeout_s: float = DIAL_S) -> Link:
    """A link to the Supervisor or the Scheduler of an engine, whichever the client `hello` seeks.

    Raises LinkClosed, OSError or ConfigError.
    """
    is_control = hello.seeks is Role.SUPERVISOR
    address = record.control_address if is_control else record.client_address
    tls = None if record.tls is None else record.tls.for_dialer()
    return await connect(address, hello, record.secret, timeout_s, tls)


def new_client_name() -> str:
    """A name that no other client has."""
    return f"client-{uuid.uuid4().hex}"


def client_hello(seeks: Role, name: str | None = None, number: int = 0) -> Hello:
    """How a client of this process introduces itself over its link of this number.

    `name`: of `new_client_name`; None: one for this link alone.
    """
    return Hello(
        role=Role.CLIENT,
        name=name or new_client_name(),
        incarnation=number,
        pid=os.getpid(),
        seeks=seeks,
    )


async def ask_facts(name: str, record: EngineRecord) -> ClientFacts:
    """What a client must know of an engine that serves. Raises EngineDead."""
    return ClientFacts.from_values(await ask_supervisor(name, record, "client_facts"))


async def ask_supervisor(name: str, record: EngineRecord, question: str) -> Any:
    """Make a call that is answered by what is known there. Raises as `call_supervisor` does.

    Raises EngineAway, too, if there is no answer soon: a process may be stopped, and keep its link.
    """
    try:
        async with asyncio.timeout(_ANSWER_S):
            return await call_supervisor(name, record, question)
    except TimeoutError:
        raise EngineAway(
            f"{name} does not answer for {_ANSWER_S:g} s. Try again, and if that does not help, "
            "see what its log says, or start it again."
        ) from None


async def call_supervisor(name: str, record: EngineRecord, method: str, *arguments: Any) -> Any:
    """Make a call and wait for its result. `name`: the engine's, for errors.

    Raises what the call raised, BadRequest for an argument that is no plain value, and EngineAway
    if the Supervisor cannot be reached, or cannot any more before it has answered.
    """
    try:
        packed = pack_values(list(arguments))
    except (TypeError, ValueError, OverflowError) as error:
        raise BadRequest(f"{method}: {error}") from error

    try:
        link = await dial_engine(record, client_hello(Role.SUPERVISOR), _CONNECT_S)
    except (LinkClosed, OSError) as error:
        raise _gone(name, error) from error

    try:
        link.send(ControlCall(method=method, arguments=packed))
        answer = await link.receive()
    except LinkClosed as error:
        raise EngineAway(
            f"the link to the Supervisor of engine {name} is lost: {error}. Its process has ended, "
            "or the network between failed. Try again, and if nobody listens there any more, start "
            "the engine again."
        ) from error
    finally:
        link.close()

    match answer:
        case ControlResult():
            return unpack_values(answer.value)
        case ControlFailure():
            raise _ERRORS[answer.kind](answer.message)
        case _:
            raise EngineDead(f"engine {name} answers a call by a {type(answer).__name__}")


async def call_l2(record: L2Record, method: str) -> Any:
    """Make a control call of an L2: `describe`, or `end`, which refuses where it is used.

    It knows both answers at once. Raises EngineAway if it is gone, or does not answer.
    """
    address = record.control_address
    where = EngineRecord(control_address=address, client_address=address, secret=record.secret)
    return await ask_supervisor(record.name, where, method)


def _gone(name: str, error: Exception) -> EngineAway:
    if isinstance(error, LinkRefused):
        return EngineAway(
            f"the Supervisor of engine {name} refuses this client: {error}. Both need the same "
            "secret, the same version of Raydix, and TLS or none."
        )
    if isinstance(error, LinkSilent):
        return EngineAway(
            f"the Supervisor of engine {name} does not answer: {error}. Its process may be stopped "
            "or busy, or it expects TLS. Try again, and if that does not help, end it and start "
            "the engine again."
        )
    return EngineAway(
        f"the Supervisor of engine {name} is gone: {error}. Start the engine again; if it runs on "
        "another host, correct the address at which it listens (raydix serve --listen)."
    )
