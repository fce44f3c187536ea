"""Where the owner of a service is found by its name, and answers."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from typing import Any

from raydix.errors import BadRequest, ConfigError, EngineStopped
from raydix.runtime.actors.bootstrap.control_client import ask_supervisor
from raydix.runtime.actors.engine_record import EngineRecord, find_record
from raydix.runtime.actors.links.address import UnixAddress
from raydix.runtime.actors.private_folder import PrivateFolder
from raydix.runtime.actors.service.former import FormerService
from raydix.runtime.actors.service.owner import EngineService
from raydix.runtime.actors.service.service_log import keeping_log
from raydix.runtime.actors.supervision.control_calls import Call, CallKind
from raydix.runtime.actors.supervision.control_desk import ControlDesk
from raydix.runtime.actors.supervision.log_feed import LogFeed

_SECRET_BYTES = 32
_RETRY_S = 0.2


async def find_former(name: str) -> FormerService | None:
    """The service that has this name on this host; None if nobody has it.

    Raises ConfigError if an engine has it, or a service that is being replaced already.
    """
    record = find_record(name)
    if record is None:
        return None
    try:
        described = await ask_supervisor(name, record, "describe_service")
    except BadRequest as error:
        raise ConfigError(
            f"The name {name} is taken: an engine has it that is no service. Choose another one "
            "(--name), or stop that."
        ) from error
    if described["is_giving_way"]:
        raise ConfigError(f"Service {name} is being replaced already. Wait until that has ended.")
    return FormerService(name, record, described)


@contextlib.asynccontextmanager
async def answering(service: EngineService) -> AsyncIterator[None]:
    """Answer for a service by its name, as soon as nobody else has that, until the block's end.

    What this process logs meanwhile, and what its engines do, is there to be fetched.
    """
    folder = PrivateFolder()
    address = str(UnixAddress(f"{folder.path}/control.sock"))
    record = EngineRecord(
        control_address=address, client_address=address, secret=os.urandom(_SECRET_BYTES)
    )
    log = LogFeed()
    desk = ControlDesk(service.name, record, _calls(service, log), on_shut_down=lambda: None)
    opening = asyncio.create_task(_open(desk), name=f"desk-{service.name}")
    try:
        with keeping_log(log):
            yield
    finally:
        opening.cancel()
        await asyncio.gather(opening, return_exceptions=True)
        await desk.close()
        folder.remove()


async def _open(desk: ControlDesk) -> None:
    while True:
        try:
            return await desk.open()
        except ConfigError:
            # The earlier version of the service has the name until its last engine has ended.
            await asyncio.sleep(_RETRY_S)


def _calls(service: EngineService, log: LogFeed) -> dict[str, Call]:
    async def shutdown() -> None:
        service.stop()
        await service.ended()

    async def wait_ended() -> None:
        await service.ended()
        raise EngineStopped(f"service {service.name} was stopped")

    def client_facts() -> dict[str, Any]:
        raise BadRequest(
            f"{service.name} is a service of several engines. Connect by AsyncService.find, or to "
            "one of its engines."
        )

    return {
        "describe_service": Call(service.describe),
        "look_at_service": Call(service.look),
        "lines_since": Call(log.lines_since),
        "next_lines": Call(log.next_lines, CallKind.WAITS),
        "give_way": Call(service.give_way),
        "shutdown": Call(shutdown),
        "wait_ended": Call(wait_ended, CallKind.WAITS),
        "client_facts": Call(client_facts),
    }
