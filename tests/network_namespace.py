"""Another host on this one: a network namespace, joined to this one's by a cable."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

import pytest


@dataclass(frozen=True)
class OtherHost:
    """Commands run there by `ip netns exec`; this host is at `gateway` for it, and nothing else."""

    name: str
    gateway: str
    cable: str
    address: str
    far_end: str
    """The cable's end over there."""

    def command(self, *words: str) -> list[str]:
        """The words as a command on the other host."""
        return ["ip", "netns", "exec", self.name, *words]

    def pull_cable(self) -> None:
        """Nothing arrives any more, in either direction, and nobody is told."""
        _ip("link", "set", self.cable, "down")

    @contextlib.contextmanager
    def partitioned(self) -> Iterator[None]:
        """Nothing arrives in either direction meanwhile, and all goes on as before afterwards."""
        # Frames go to a card that neither has. Each host still reaches itself by its own address.
        here = ("dev", self.cable)
        there = ("-n", self.name), ("dev", self.far_end)
        nobody = ("lladdr", "02:00:00:00:00:01", "nud", "permanent")
        _ip("neigh", "replace", self.address, *nobody, *here)
        _ip(*there[0], "neigh", "replace", self.gateway, *nobody, *there[1])
        try:
            yield
        finally:
            _ip("neigh", "del", self.address, *here)
            _ip(*there[0], "neigh", "del", self.gateway, *there[1])


@contextlib.contextmanager
def other_host() -> Iterator[OtherHost]:
    """A host with nothing but a cable to this one. Skips where such cannot be made."""
    if shutil.which("ip") is None:
        pytest.skip("needs the command ip (apt-get install iproute2)")
    number = os.getpid() % 60_000
    subnet = f"10.213.{number % 250}"
    host = OtherHost(
        name=f"raydix-{number}",
        gateway=f"{subnet}.1",
        cable=f"rdx{number}a",
        address=f"{subnet}.2",
        far_end=f"rdx{number}b",
    )
    try:
        _ip("netns", "add", host.name)
    except subprocess.CalledProcessError as error:
        pytest.skip(
            f"needs root's right to make network namespaces (CAP_SYS_ADMIN): {error.stderr}"
        )

    try:
        far_end = host.far_end
        _ip("link", "add", host.cable, "type", "veth", "peer", far_end, "netns", host.name)
        _ip("-n", host.name, "link", "set", "lo", "up")
        _ip("addr", "add", f"{host.gateway}/24", "dev", host.cable)
        _ip("link", "set", host.cable, "up")
        _ip("-n", host.name, "addr", "add", f"{host.address}/24", "dev", far_end)
        _ip("-n", host.name, "link", "set", far_end, "up")
        yield host
    finally:
        # The cable goes with one of its ends.
        _ip("netns", "del", host.name)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)
