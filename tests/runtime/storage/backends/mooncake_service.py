"""A real Mooncake master and a process that lends it memory, over TCP on the loopback."""

import importlib
import importlib.util
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from raydix.runtime.config.l3 import MooncakeL3Section
from raydix.runtime.storage.backends.mooncake import MooncakeBackend
from tests.free_ports import free_port
from tests.runtime.storage.stores import NAMESPACE, Store, make_key

SEGMENT_BYTES = 256 << 20
DISCARD_S = 1
"""How long the master keeps a name for a writer that does not finish; by default 30."""
MIN_SEGMENT_BYTES = 16 << 20
_LEND = """
import sys
from mooncake.store import MooncakeDistributedStore
store = MooncakeDistributedStore()
settings = ("127.0.0.1", "P2PHANDSHAKE", int(sys.argv[2]), 16 << 20, "tcp", "", sys.argv[1])
assert store.setup(*settings) == 0
print("ready", flush=True)
sys.stdin.read()
"""


def find_master() -> str:
    """The program; skips the test where Mooncake is not installed."""
    if importlib.util.find_spec("mooncake") is None:
        pytest.skip("mooncake-transfer-engine-non-cuda is not installed")
    program = shutil.which("mooncake_master") or str(
        Path(sys.executable).parent / "mooncake_master"
    )
    try:
        importlib.import_module("mooncake.store")
    except ImportError as error:
        pytest.skip(f"mooncake cannot be imported: {error}")
    return program


class MooncakeService:
    """Owns: the master and the lender."""

    def __init__(self, segment_bytes: int = SEGMENT_BYTES) -> None:
        self.program = find_master()
        self.segment_bytes = segment_bytes
        self.address = f"127.0.0.1:{free_port()}"
        self.master: subprocess.Popen[bytes] | None = None
        self.lender: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        self.start_master()
        try:
            self.start_lender()
        except BaseException:
            self.kill()
            raise

    def start_master(self) -> None:
        host, _, port = self.address.partition(":")
        options = [
            f"--rpc_address={host}",
            f"--rpc_port={port}",
            "--metrics_host=127.0.0.1",
            "--client_ttl=2",
        ]
        options += [f"--metrics_port={free_port()}", "--default_kv_lease_ttl=5000"]
        options += [f"--put_start_discard_timeout_sec={DISCARD_S}"]
        self.master = subprocess.Popen(
            [self.program, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def start_lender(self) -> None:
        """Wait for a master that answers: the library itself tries for long."""
        command = [sys.executable, "-c", _LEND, self.address, str(self.segment_bytes)]
        self.lender = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert self.lender.stdout is not None
        lines = iter(self.lender.stdout.readline, b"")
        assert any(line == b"ready\n" for line in lines), "no Mooncake client could be set up"

    def pause_master(self) -> None:
        """Stop answering; connections stand."""
        assert self.master is not None
        self.master.send_signal(signal.SIGSTOP)

    def resume_master(self) -> None:
        assert self.master is not None
        self.master.send_signal(signal.SIGCONT)

    def kill_master(self) -> None:
        assert self.master is not None
        self.master.kill()
        self.master.wait()

    def kill_lender(self) -> None:
        assert self.lender is not None
        self.lender.kill()
        self.lender.communicate()

    def kill(self) -> None:
        self.kill_lender()
        self.kill_master()


def _connect(address: str) -> Any:
    from mooncake.store import MooncakeDistributedStore

    client = MooncakeDistributedStore()
    assert client.setup("127.0.0.1", "P2PHANDSHAKE", 0, 16 << 20, "tcp", "", address) == 0
    return client


def _fill(address: str, num_bytes: int) -> None:
    """Store objects that are never evicted."""
    from mooncake.store import ReplicateConfig

    pinned = ReplicateConfig()
    pinned.with_hard_pin = True
    client = _connect(address)
    for index in range(num_bytes >> 18):
        assert client.put(f"filler/{index}", bytes(1 << 18), pinned) == 0
    client.close()


class MooncakeStore(Store):
    def __init__(self, address: str) -> None:
        self.address = address
        self.client: Any = None
        self.small_services: list[MooncakeService] = []

    def __getstate__(self) -> dict[str, object]:
        return {"address": self.address, "client": None, "small_services": []}

    def make(self, max_bytes: int | None = None) -> MooncakeBackend:
        if max_bytes is None:
            return MooncakeBackend(MooncakeL3Section(backend="mooncake", master=self.address))
        service = MooncakeService(MIN_SEGMENT_BYTES)
        self.small_services.append(service)
        _fill(service.address, MIN_SEGMENT_BYTES - max_bytes)
        return MooncakeBackend(MooncakeL3Section(backend="mooncake", master=service.address))

    def wait_for_dead_writers(self) -> None:
        time.sleep(DISCARD_S + 1)

    def _client(self) -> Any:
        if self.client is None:
            self.client = _connect(self.address)
        return self.client

    def _key(self, name: int) -> str:
        return f"raydix/{NAMESPACE.hex}/0/{make_key(name).hex()}"

    def raw(self, name: int) -> bytes | None:
        data: bytes = self._client().get(self._key(name))
        return data or None

    def set_raw(self, name: int, data: bytes) -> None:
        """The library refuses empty objects: one byte stands for none."""
        self._client().remove(self._key(name), True)
        assert self._client().put(self._key(name), data or b"?") == 0

    def close(self) -> None:
        """Remove all objects and end the services."""
        for service in self.small_services:
            service.kill()
        self._client().remove_by_regex("^raydix/", True)
        self._client().close()


def wait_until(condition: Any, timeout_s: float = 30.0) -> None:
    """Services of others tell nobody when they have noticed something."""
    give_up_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < give_up_s, f"not within {timeout_s} s"
        time.sleep(0.05)
