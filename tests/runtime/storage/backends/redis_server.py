"""A Redis server for tests: real, on a port of its own, in memory alone."""

import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from raydix.runtime.storage.backend import StorageBackend
from raydix.runtime.storage.backends.redis import RedisBackend
from raydix.runtime.storage.backends.resp import RespAddress, RespConnection
from tests.free_ports import free_port
from tests.runtime.storage.stores import NAMESPACE, Store, make_key


class RedisServer:
    """Owns: the process. Skips the test that wants one where `redis-server` is not installed."""

    def __init__(self) -> None:
        program = shutil.which("redis-server")
        if program is None:
            pytest.skip("redis-server is not installed (apt-get install redis-server)")
        self.program = program
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/1"

    def start(self) -> None:
        """Start, empty, on the same port as before, and wait until it answers."""
        where = ["--port", str(self.port), "--bind", "127.0.0.1"]
        options = [*where, "--save", "", "--appendonly", "no"]
        self.process = subprocess.Popen([self.program, *options], stdout=subprocess.DEVNULL)

        give_up_s = time.monotonic() + 20
        while True:
            try:
                assert self.call(b"PING") == b"PONG"
                return
            except OSError:
                assert self.process.poll() is None, "redis-server has ended"
                assert time.monotonic() < give_up_s, "redis-server does not answer"
                time.sleep(0.01)  # a process that starts sends no word of it

    def call(self, *words: bytes) -> object:
        """One command on a connection of its own."""
        deadline_s = time.monotonic() + 20
        connection = RespConnection(RespAddress.parse(self.url), deadline_s)
        try:
            connection.call(deadline_s, b"SELECT", b"1")
            return connection.call(deadline_s, *words)
        finally:
            connection.close()

    def pause(self) -> None:
        """Stop answering; connections stand."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Go on; nothing happens to a server that is not paused."""
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()


class RedisStore(Store):
    def __init__(self, url: str) -> None:
        self.url = url

    def make(self, max_bytes: int | None = None) -> RedisBackend:
        if max_bytes is not None:
            info = self._call(b"INFO", b"memory")
            assert isinstance(info, bytes)
            fields = dict(line.split(b":", 1) for line in info.splitlines() if b":" in line)
            self._call(
                b"CONFIG", b"SET", b"maxmemory", b"%d" % (int(fields[b"used_memory"]) + max_bytes)
            )
        return RedisBackend(self.url)

    def _call(self, *words: bytes) -> object:
        connection = RespConnection(RespAddress.parse(self.url), time.monotonic() + 20)
        try:
            connection.call(time.monotonic() + 20, b"SELECT", b"1")
            return connection.call(time.monotonic() + 20, *words)
        finally:
            connection.close()

    @contextmanager
    def lose_service(self, backend: StorageBackend) -> Iterator[None]:
        # It ends by itself, for a paused server takes no command to go on.
        assert self._call(b"CLIENT", b"PAUSE", b"1000", b"ALL") == b"OK"
        yield

    def _key(self, name: int) -> bytes:
        return f"raydix:{NAMESPACE.hex}:0:{make_key(name).hex()}".encode()

    def raw(self, name: int) -> bytes | None:
        value = self._call(b"GET", self._key(name))
        assert value is None or isinstance(value, bytes)
        return value

    def set_raw(self, name: int, data: bytes) -> None:
        assert self._call(b"SET", self._key(name), data) == b"OK"
