"""Pages pulled from another process over the loopback, beside iperf3 and plain sockets.

Two processes, each with HostMemory's pulls and an arena: links, streams, pieces, headers,
checksums, verification and answers are the real ones; no core decides, as what is pulled is the
same each round. They are pulled by TCP, as from another host, and as within a host. Beside that,
in turns: iperf3 with as many streams, from and into buffers that stay in caches (before 3.16 it
uses one core at each end); and plain sockets, one thread each, which send from memory as large as
the arena into as much, and look at nothing: what checksums cost at both ends shows beside them. The
bar is for TCP beside iperf3, and without it beside plain sockets.

Then, in a record of its own, what pulls take of Schedulers: `benchmarks/engine/pull_cpu.py` says
how.
"""

import asyncio
import shutil
import time
from dataclasses import asdict, replace
from multiprocessing.connection import Connection
from statistics import median

import numpy as np

from benchmarks.engine.pull_cpu import Requests, cpu_figures, measure_cpu
from benchmarks.records.command_line import add_results, count, make_parser, positive, run
from benchmarks.records.record import Figure, report
from benchmarks.rivals.moved_bytes import (
    LOOPBACK,
    PlainSockets,
    Round,
    Setting,
    cpu_s_of,
    iperf,
    process,
    sink,
)
from raydix.ids import BatchId, ConnectionId, HostPageId
from raydix.runtime.actors.arena_users import ArenaUsers
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
_BY_TCP = "localhost"
"""The name by which no listener is known within the host: it is dialled as one elsewhere is."""


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
                users=ArenaUsers(self.arena.users),
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
        pipe.send(await node.pulls.open(TcpAddress(LOOPBACK, 0)))
        while await asyncio.to_thread(pipe.recv):
            pipe.send(time.process_time())
        await node.pulls.close()

    asyncio.run(serve())


async def _puller(setting: Setting, record: PeerRecord) -> tuple[Node, ConnectionId]:
    """A node that pulls from another one, and its connection to that."""
    node = Node(setting, f"puller of {record.host}")
    node.pulls.follow([record])
    return node, (await node.events.get()).connection


async def measure(setting: Setting) -> dict[str, list[Round]]:
    """Rounds of each way, in turns."""
    rounds: dict[str, list[Round]] = {"pull": [], "pull here": [], "plain": [], "iperf3": []}
    with process(hold, setting) as holder, process(sink, setting) as plain_sink:
        record: PeerRecord = await asyncio.to_thread(holder.recv)
        plain = await asyncio.to_thread(PlainSockets, setting, plain_sink)
        nodes = {
            "pull": await _puller(setting, replace(record, host=_BY_TCP)),
            "pull here": await _puller(setting, record),
        }
        for number in range(setting.rounds):
            for name, (node, connection) in nodes.items():
                cpu_s = cpu_s_of(holder)
                moved = await node.pull(setting, connection, number << 32)
                cpu_s = moved.cpu_s + cpu_s_of(holder) - cpu_s
                rounds[name].append(Round(moved.num_bytes, moved.seconds, cpu_s))
            rounds["plain"].append(await asyncio.to_thread(plain.move))
            if shutil.which("iperf3") is not None:
                rounds["iperf3"].append(await asyncio.to_thread(iperf, setting))
        for node, _ in nodes.values():
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
    if rounds["pull here"]:
        pairs = zip(rounds["pull here"], pulls, strict=True)
        value = median(here.gb_per_s / by_tcp.gb_per_s for here, by_tcp in pairs)
        made.append(Figure(name="pull within a host of pull by TCP", value=value, unit="1"))
    for name, moved in rounds.items():
        if moved:
            speed = median(each.gb_per_s for each in moved)
            made.append(Figure(name=f"{name} throughput", value=speed, unit="GB/s"))
            cpu = median(each.cpu_s_per_gb for each in moved)
            made.append(Figure(name=f"{name} cpu per GB", value=cpu, unit="s"))
    return made


def main() -> int:
    """Measure, print the records, and return 1 below a bar."""
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
    status = report(
        "pull", asdict(setting), figures(asyncio.run(measure(setting))), keep_in=arguments.results
    )
    requests = Requests()
    taken = cpu_figures(asyncio.run(measure_cpu(requests)))
    return max(status, report("pull_cpu", asdict(requests), taken, keep_in=arguments.results))


if __name__ == "__main__":
    run(main)
