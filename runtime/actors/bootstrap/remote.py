"""Engines and clients on different hosts: where an engine listens, and how one reaches it."""

import os
from pathlib import Path

from raydix.errors import EngineDead
from raydix.runtime.actors.bootstrap.control_client import ask_facts
from raydix.runtime.actors.bootstrap.engine_handle import EngineHandle
from raydix.runtime.actors.client_secret import find_secret, no_secret
from raydix.runtime.actors.engine_record import EngineRecord, find_record
from raydix.runtime.actors.links.address import TcpAddress
from raydix.runtime.actors.links.tls import TlsFiles
from raydix.runtime.actors.supervision.gateway import GatewaySettings


def gateway_settings(listen: str | None, secret_file: str | Path | None) -> GatewaySettings | None:
    """Where an engine is to listen for clients on other hosts; None: nowhere.

    Raises ConfigError, also if anybody could connect who reaches the host.
    """
    if listen is None:
        return None
    address = TcpAddress.parse(listen)
    secret = find_secret(secret_file, os.environ)
    if secret is None and not address.is_loopback:
        raise no_secret(f"Listening at {address.host_port}, which other hosts can reach,")
    return GatewaySettings(address=address, secret=secret)


async def reach_engine(
    name: str, address: str, secret_file: str | Path | None = None
) -> EngineHandle:
    """Reach the engine of this name that listens at `HOST:PORT`. Needs nothing of Ray.

    Raises ConfigError without a secret, EngineDead if the engine does not answer, or not to us.
    """
    where = TcpAddress.parse(address)
    record = EngineRecord(
        control_address=str(where),
        client_address=str(where),
        secret=_secret_of(name, where, secret_file),
        tls=TlsFiles.of(os.environ),
    )

    facts = await ask_facts(name, record)
    if facts.name != name:
        raise EngineDead(
            f"the engine at {where.host_port} is named {facts.name}, not {name}. Connect to "
            f"{facts.name}@{where.host_port}, or correct the address."
        )
    return EngineHandle(facts, record)


def _secret_of(name: str, where: TcpAddress, secret_file: str | Path | None) -> bytes:
    secret = find_secret(secret_file, os.environ)
    if secret is None and where.is_loopback:
        # An engine that was given none uses its own, which is in its record on this host.
        record = find_record(name)
        secret = None if record is None else record.secret
    if secret is None:
        raise no_secret(f"Connecting to {name}@{where.host_port}")
    return secret
