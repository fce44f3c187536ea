"""Whether what `raydix serve` is to listen at is left free by the engine's own configuration."""

from raydix.errors import ConfigError
from raydix.runtime.actors.links.address import TcpAddress
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.config.ports import NamedPorts, find_conflict


def require_distinct_ports(config: EngineConfig, *, http: str | None, listen: str | None) -> None:
    """Raise ConfigError if an option is no address, or asks for a port that is asked for already.

    http, listen: `HOST:PORT` of the options of these names; port 0 is any free one.
    """
    named = list(config.named_ports)
    for option, text in (("--http", http), ("--listen", listen)):
        if text is None:
            continue
        address = parse_option(option, text)
        host = "127.0.0.1" if address.host == "localhost" else address.host
        if address.port:
            named.append(NamedPorts(option, host, address.port))
    conflict = find_conflict(named)
    if conflict is not None:
        raise ConfigError(conflict)


def parse_option(option: str, text: str) -> TcpAddress:
    """The address that an option gives. Raises ConfigError that names the option."""
    try:
        return TcpAddress.parse(text)
    except ConfigError as error:
        raise ConfigError(f"{option}: {error}") from error
