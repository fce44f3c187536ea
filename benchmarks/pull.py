"""Pages pulled from another process over the loopback, beside iperf3 and plain sockets.

Two processes, each with HostMemory's pulls and an arena: links, streams, pieces, headers,
checksums, verification and answers are the real ones; no core decides, as what is pulled is the
same each round. Beside it, in turns: iperf3 with as many streams, from and into buffers that stay
in caches (before 3.16 it uses one core at each end); and plain sockets, one thread each, which send
from memory as large as the arena into as much, and look at nothing: what checksums cost at both
ends shows beside them. The bar is for iperf3, and without it for plain sockets.

Then what pulls take of Schedulers: `benchmarks/engine/pull_cpu.py` says how.
"""

import asyncio
import json
import mmap
import multiprocessing
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from statistics import median
from typing import Any

import numpy as np

from benchmarks.engine.pull_cpu import Requests, cpu_figures, measure_cpu
from benchmarks.records.command_line import add_results, count, make_parser, positive, run
from benchmarks.records.record import Figure, report
from raydix.ids import BatchId, ConnectionId, HostPageId
from raydix.runtime.actors.links.address import TcpAddress
from raydix.runtime.actors.links.numbered_links import NumberedLinks
from raydix.runtime.actors.pulls.pull_settings import PeerRecord, PullHome
from raydix.runtime.actors.pulls.pulls import Pulls
from raydix.runtime.cache.host.events import (
    FromPeer,
    FromReader,
    PeerAttached,
    PeerEvent,
    SendPages,
)
from raydix.runtime.cache.page_key import KEY_BYTES, split_keys
from raydix.runtime.config.kv_layout import GroupKind, KvGroup, KvLayout
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.hello import Hello, Role
from raydix.runtime.messages.host import ReadObjects
from raydix.runtime.messages.pulls import PullPages
from raydix.runtime.storage.namespace import make_namespace
from raydix.runtime.tiers.host_arena import HostArena

MIN_RATIO = 0.8
_BATCH_PAGES = 32
_BATCHES_AT_ONCE = 4
"""The number that HostMemory orders of one peer."""
_LOOPBACK = "127.0.0.1"


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


class Node:
    """One process's pulls: it holds every page, or pulls them."""

    def __init__(self, setting: Setting, name: str) -> None:
        layout = setting.layout
        self.arena = HostArena.create(layout, setting.num_pages * layout.host_page_bytes(0))
        self.links = NumberedLinks()
        self.pulls = Pulls(
            PullHome(
                hello=Hello(role=Role.HOST_MEMORY, name=name, incarnation=1, pid=1),
                arena=self.arena,
                namespace=make_namespace(b"model", "v1", layout),
                post=self._take,
                links=self.links,
                num_streams=setting.num_streams,
            )
        )
        self.events: asyncio.Queue[PeerAttached | FromPeer] = asyncio.Queue()

    def _take(self, event: PeerEvent) -> None:
        match event:
            case FromReader(connection, PullPages() as pull):
                pages = (int.from_bytes(key, "big") for key in split_keys(pull.keys))
                found = tuple(map(HostPageId, pages))
                self.pulls.send(SendPages(connection, pull.batch_id, found))
            case PeerAttached() | FromPeer():
                self.events.put_nowait(event)

    async def pull(self, setting: Setting, connection: ConnectionId, first_batch: int) -> Round:
        """Pull for a while; a few batches are always under way."""
        num_done = num_ordered = 0
        num_pages = self.arena.geometry.num_host_pages
        began_s, cpu_s = time.perf_counter(), time.process_time()

        def order() -> None:
            nonlocal num_ordered
            first = num_ordered * _BATCH_PAGES
            pages = [(first + index) % num_pages for index in range(_BATCH_PAGES)]
            self.links.send(
                connection,
                ReadObjects(
                    batch_id=BatchId(first_batch + num_ordered),
                    keys=b"".join(page.to_bytes(KEY_BYTES, "big") for page in pages),
                    host_page_ids=int32_array(pages),
                ),
            )
            num_ordered += 1

        for _ in range(_BATCHES_AT_ONCE):
            order()
        while num_done < num_ordered:
            event = await self.events.get()
            assert isinstance(event, FromPeer)
            assert not any(event.message.statuses), "every page is held and sound"  # type: ignore[union-attr]
            num_done += 1
            if time.perf_counter() - began_s < setting.round_s:
                order()
        object_bytes = self.arena.geometry.object_bytes(0)
        return Round(
            num_done * _BATCH_PAGES * object_bytes,
            time.perf_counter() - began_s,
            time.process_time() - cpu_s,
        )


def hold(setting: Setting, pipe: Connection) -> None:
    """Be the process that is pulled from, until the pipe says so; it answers with its CPU time."""

    async def serve() -> None:
        node = Node(setting, "holder")
        np.frombuffer(node.arena.buffer, dtype=np.uint8)[4096:] = 7
        pipe.send(await node.pulls.open(TcpAddress(_LOOPBACK, 0)))
        while await asyncio.to_thread(pipe.recv):
            pipe.send(time.process_time())
        await node.pulls.close()

    asyncio.run(serve())


def sink(setting: Setting, pipe: Connection) -> None:
    """Be the end that plain sockets send to, until the pipe says so."""
    listener = socket.create_server((_LOOPBACK, 0))
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


def _cpu_s(pipe: Connection) -> float:
    pipe.send(True)
    return float(pipe.recv())


class PlainSockets:
    """Owns: as many connected sockets as there are streams, and the memory that is sent from."""

    def __init__(self, setting: Setting, pipe: Connection) -> None:
        self._setting, self._pipe = setting, pipe
        port = pipe.recv()
        self._connections = [
            socket.create_connection((_LOOPBACK, port)) for _ in range(setting.num_streams)
        ]
        self._memory = memoryview(mmap.mmap(-1, setting.arena_bytes))
        np.frombuffer(self._memory, dtype=np.uint8)[:] = 2
        self._counts = [0] * setting.num_streams

    def move(self) -> Round:
        """Send for a while by all sockets."""
        began_s, cpu_s = time.perf_counter(), time.process_time() + _cpu_s(self._pipe)
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
        cpu_s = time.process_time() + _cpu_s(self._pipe) - cpu_s
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
    with socket.create_server((_LOOPBACK, 0)) as chosen:
        port = str(chosen.getsockname()[1])
    server = subprocess.Popen(
        ["iperf3", "-s", "-1", "-p", port, "-B", _LOOPBACK, "--forceflush"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    while "listening" not in server.stdout.readline():
        pass
    seconds = max(1, round(setting.round_s))
    client = subprocess.run(
        [
            *("iperf3", "-c", _LOOPBACK, "-p", port, "-t", str(seconds)),
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


async def measure(setting: Setting) -> dict[str, list[Round]]:
    """Rounds of each way, in turns."""
    rounds: dict[str, list[Round]] = {"pull": [], "plain": [], "iperf3": []}
    with process(hold, setting) as holder, process(sink, setting) as plain_sink:
        record: PeerRecord = await asyncio.to_thread(holder.recv)
        plain = await asyncio.to_thread(PlainSockets, setting, plain_sink)
        node = Node(setting, "puller")
        node.pulls.follow([record])
        attached = await node.events.get()
        for number in range(setting.rounds):
            cpu_s = _cpu_s(holder)
            moved = await node.pull(setting, attached.connection, number << 32)
            cpu_s = moved.cpu_s + _cpu_s(holder) - cpu_s
            rounds["pull"].append(Round(moved.num_bytes, moved.seconds, cpu_s))
            rounds["plain"].append(await asyncio.to_thread(plain.move))
            if shutil.which("iperf3") is not None:
                rounds["iperf3"].append(await asyncio.to_thread(iperf, setting))
        await node.pulls.close()
    return rounds


def figures(rounds: dict[str, list[Round]]) -> list[Figure]:
    """Medians of all rounds, and of each round's ratio to what ran beside it."""
    pulls = rounds["pull"]
    made = []
    measured = "iperf3" if rounds["iperf3"] else "plain"
    for name in ("plain", "iperf3"):
        if rounds[name]:
            pairs = zip(pulls, rounds[name], strict=True)
            made.append(
                Figure(
                    name=f"pull of {name}",
                    value=median(ours.gb_per_s / theirs.gb_per_s for ours, theirs in pairs),
                    unit="1",
                    min_value=MIN_RATIO if name == measured else None,
                )
            )
    for name, moved in rounds.items():
        if moved:
            speed = median(each.gb_per_s for each in moved)
            made.append(Figure(name=f"{name} throughput", value=speed, unit="GB/s"))
            cpu = median(each.cpu_s_per_gb for each in moved)
            made.append(Figure(name=f"{name} cpu per GB", value=cpu, unit="s"))
    return made


def main() -> int:
    """Measure, print the record, and return 1 below a bar."""
    parser = make_parser(__doc__)
    defaults = Setting()
    parser.add_argument("--page-bytes", type=count, default=defaults.page_bytes)
    parser.add_argument("--arena-bytes", type=count, default=defaults.arena_bytes)
    parser.add_argument("--streams", type=count, default=defaults.num_streams)
    parser.add_argument("--rounds", type=count, default=defaults.rounds)
    parser.add_argument("--round-s", type=positive, default=defaults.round_s)
    add_results(parser, help="folder for the record")
    arguments = parser.parse_args()
    setting = Setting(
        page_bytes=arguments.page_bytes,
        arena_bytes=arguments.arena_bytes,
        num_streams=arguments.streams,
        rounds=arguments.rounds,
        round_s=arguments.round_s,
    )
    if shutil.which("iperf3") is None:
        print("iperf3 is not installed (apt-get install iperf3): plain sockets alone are beside it")
    requests = Requests()
    made = figures(asyncio.run(measure(setting)))
    made += cpu_figures(asyncio.run(measure_cpu(requests)))
    config = asdict(setting) | {"requests": asdict(requests)}
    return report("pull", config, made, keep_in=arguments.results)


if __name__ == "__main__":
    run(main)
