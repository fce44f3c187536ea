"""Which services run, as far as processes of this host own them."""

import contextlib
from typing import Any

from raydix.errors import BadRequest, EngineDead
from raydix.runtime.actors.bootstrap.control_client import ask_supervisor
from raydix.runtime.actors.engine_record import find_record, running_names


async def running_services() -> dict[str, dict[str, Any]]:
    """What the services that are owned by processes of this host say of their engines, by name."""
    looked = {name: await look_at_service(name) for name in running_names()}
    return {name: told for name, told in looked.items() if told is not None}


async def look_at_service(name: str) -> dict[str, Any] | None:
    """What a service says of its engines; None: it does not answer, or this is an engine."""
    record = find_record(name)
    told: dict[str, Any] | None = None
    # An engine knows no such call.
    with contextlib.suppress(EngineDead, BadRequest):
        if record is not None:
            told = await ask_supervisor(name, record, "look_at_service")
    return told
