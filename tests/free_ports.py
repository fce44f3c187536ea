"""Ports for what tests start on this host."""

from raydix.runtime.actors.links.address import TcpAddress
from raydix.runtime.server import listener


def free_port() -> int:
    """A port of the loopback device that nobody listens at, nor is given by the system."""
    return listener.free_port(TcpAddress("127.0.0.1", 0))
