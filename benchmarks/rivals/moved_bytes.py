"""What moves bytes beside pulls: plain sockets, and iperf3."""

import json
import mmap
import multiprocessing
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from raydix.runtime.config.kv_layout import GroupKind, KvGroup, KvLayout

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What is moved, and how often."""

    page_bytes: int = 1 << 20
    arena_bytes: int = 1 << 30
    num_streams: int = 4
    rounds: int = 7
    round_s: float = 2.0

    @property
    def layout(self) -> KvLayout:
        """Pages with payloads of `page_bytes`."""
        group = KvGroup(
            kind=GroupKind.LATENT, layers=(0,), num_kv_heads=1, head_dim=self.page_bytes // 4
        )
        return KvLayout(page_size=1, dtype="float32", dtype_bytes=4, groups=(group,))

    @property
    def num_pages(self) -> int:
        """The pages that one arena holds."""
        return self.arena_bytes // self.page_bytes


@dataclass(frozen=True, slots=True)
class Round:
    """What one way of moving bytes has done in a round."""

    num_bytes: int
    seconds: float
    cpu_s: float
    """The processor time of both ends."""

    @property
    def gb_per_s(self) -> float:
        """How much is moved per second."""
        return self.num_bytes / self.seconds / 1e9

    @property
    def cpu_s_per_gb(self) -> float:
        """The processor time per GB."""
        return self.cpu_s / self.num_bytes * 1e9


def sink(setting: Setting, pipe: Connection) -> None:
    """Be the end that plain sockets send to, until the pipe says so."""
    listener = socket.create_server((LOOPBACK, 0))
    pipe.send(listener.getsockname()[1])
    memory = memoryview(mmap.mmap(-1, setting.arena_bytes))
    np.frombuffer(memory, dtype=np.uint8)[:] = 1

    def receive(connection: socket.socket, first: int) -> None:
        page = first
        while True:
            start = page * setting.page_bytes
            if not connection.recv_into(
                memory[start : start + setting.page_bytes],
                setting.page_bytes,
                socket.MSG_WAITALL,
            ):
                return
            page = (page + setting.num_streams) % setting.num_pages

    for index in range(setting.num_streams):
        connection, _ = listener.accept()
        threading.Thread(target=receive, args=[connection, index], daemon=True).start()
    while pipe.recv():
        pipe.send(time.process_time())


@contextmanager
def process(target: Callable[..., None], setting: Setting) -> Iterator[Connection]:
    """Run one end in a process of its own."""
    context = multiprocessing.get_context("spawn")
    pipe, theirs = context.Pipe()
    child = context.Process(target=target, args=(setting, theirs))
    child.start()
    try:
        yield pipe
    finally:
        pipe.send(False)
        child.join()


def cpu_s_of(pipe: Connection) -> float:
    """The processor time of a process that answers with it."""
    pipe.send(True)
    return float(pipe.recv())


class PlainSockets:
    """Owns: as many connected sockets as there are streams, and the memory that is sent from."""

    def __init__(self, setting: Setting, pipe: Connection) -> None:
        self._setting, self._pipe = setting, pipe
        port = pipe.recv()
        self._connections = [
            socket.create_connection((LOOPBACK, port)) for _ in range(setting.num_streams)
        ]
        self._memory = memoryview(mmap.mmap(-1, setting.arena_bytes))
        np.frombuffer(self._memory, dtype=np.uint8)[:] = 2
        self._counts = [0] * setting.num_streams

    def move(self) -> Round:
        """Send for a while by all sockets."""
        began_s, cpu_s = time.perf_counter(), time.process_time() + cpu_s_of(self._pipe)
        end_s = began_s + self._setting.round_s
        threads = [
            threading.Thread(target=self._send, args=[index, end_s])
            for index in range(self._setting.num_streams)
        ]
        before = sum(self._counts)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seconds = time.perf_counter() - began_s
        cpu_s = time.process_time() + cpu_s_of(self._pipe) - cpu_s
        return Round((sum(self._counts) - before) * self._setting.page_bytes, seconds, cpu_s)

    def _send(self, index: int, end_s: float) -> None:
        setting = self._setting
        page = index
        while True:
            start = page * setting.page_bytes
            self._connections[index].sendall(self._memory[start : start + setting.page_bytes])
            self._counts[index] += 1
            page = (page + setting.num_streams) % setting.num_pages
            # Looked at last: on a busy machine a thread may start when its round is over.
            if time.perf_counter() >= end_s:
                return


def iperf(setting: Setting) -> Round:
    """One round of iperf3, whose server answers one client."""
    with socket.create_server((LOOPBACK, 0)) as chosen:
        port = str(chosen.getsockname()[1])
    server = subprocess.Popen(
        ["iperf3", "-s", "-1", "-p", port, "-B", LOOPBACK, "--forceflush"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    while "listening" not in server.stdout.readline():
        pass
    seconds = max(1, round(setting.round_s))
    client = subprocess.run(
        [
            *("iperf3", "-c", LOOPBACK, "-p", port, "-t", str(seconds)),
            *("-P", str(setting.num_streams), "-J"),
        ],
        check=True,
        capture_output=True,
        text=True,
    )
    server.communicate()
    end: dict[str, Any] = json.loads(client.stdout)["end"]
    cpu = end["cpu_utilization_percent"]
    received = end["sum_received"]
    cpu_s = received["seconds"] * (cpu["host_total"] + cpu["remote_total"]) / 100
    return Round(received["bytes"], received["seconds"], cpu_s)
