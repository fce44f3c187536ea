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

    def command(self, *words: str) -> list[str]:
        """The words as a command on the other host."""
        return ["ip", "netns", "exec", self.name, *words]

    def pull_cable(self) -> None:
        """Nothing arrives any more, in either direction, and nobody is told."""
        _ip("link", "set", self.cable, "down")


@contextlib.contextmanager
def other_host() -> Iterator[OtherHost]:
    """A host with nothing but a cable to this one. Skips where such cannot be made."""
    if shutil.which("ip") is None:
        pytest.skip("needs the command ip (apt-get install iproute2)")
    number = os.getpid() % 60_000
    subnet = f"10.213.{number % 250}"
    host = OtherHost(name=f"raydix-{number}", gateway=f"{subnet}.1", cable=f"rdx{number}a")
    try:
        _ip("netns", "add", host.name)
    except subprocess.CalledProcessError as error:
        pytest.skip(
            f"needs root's right to make network namespaces (CAP_SYS_ADMIN): {error.stderr}"
        )

    try:
        far_end = f"rdx{number}b"
        _ip("link", "add", host.cable, "type", "veth", "peer", far_end, "netns", host.name)
        _ip("addr", "add", f"{host.gateway}/24", "dev", host.cable)
        _ip("link", "set", host.cable, "up")
        _ip("-n", host.name, "addr", "add", f"{subnet}.2/24", "dev", far_end)
        _ip("-n", host.name, "link", "set", far_end, "up")
        yield host
    finally:
        # The cable goes with one of its ends.
        _ip("netns", "del", host.name)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)
