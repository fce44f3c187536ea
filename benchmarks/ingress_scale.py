"""What one ingress takes of a CPU core and of memory, for 4 to 1,000 nodes.

    python -m benchmarks.ingress_scale

The core alone: nodes that have told their keys and their load, changes of keys in messages as they
come from a node that computes, and prompts of which one node has the first half. Times are of this
thread's CPU. `docs/scale.md` reckons with them.
"""

import tracemalloc
from collections.abc import Iterator
from time import thread_time

import numpy as np

from benchmarks.records.command_line import add_keep, count, make_parser, run
from benchmarks.records.record import Figure, report
from raydix.ids import NodeId, RequestId
from raydix.runtime.cache.page_key import KEY_BYTES, MIRROR_KEY_BYTES
from raydix.runtime.messages.kv_events import (
    KvEvent,
    KvNews,
    PagesRemoved,
    PagesStored,
    ShortKeys,
    Tier,
)
from raydix.runtime.messages.line import Line
from raydix.runtime.messages.routing import NodeReport
from raydix.runtime.routing.events import (
    Asking,
    FollowingBegun,
    NodeFound,
    NodeNews,
    NodeReported,
)
from raydix.runtime.routing.ingress import Ingress
from raydix.runtime.routing.policies import SoonestNode

PAGE_SIZE = 16
PROMPT_PAGES = 512
PAGES_PER_MESSAGE = 64
"""The pages that a node computes in 50 ms at 20,000 tokens/s."""
LOAD = NodeReport(
    num_seen=0,
    busy_s=0.2,
    num_requests=8,
    arrivals_per_s=4.0,
    busy_fraction=0.7,
    num_ingresses=1,
    prefill=Line(0.005, 1 / 20_000),
    load=Line(0.001, 1e-5),
    pull=None,
    page_size=PAGE_SIZE,
    interval_s=1.0,
)


def random_keys(random: np.random.Generator, num_keys: int) -> bytes:
    """Keys of pages, concatenated."""
    return random.bytes(num_keys * KEY_BYTES)


def short(keys: bytes) -> ShortKeys:
    """The same keys as they are told."""
    whole = np.frombuffer(keys, np.uint8).reshape(-1, KEY_BYTES)
    return ShortKeys(whole[:, :MIRROR_KEY_BYTES].tobytes())


def stored(keys: bytes) -> KvEvent:
    """L2 has got pages."""
    return PagesStored(tier=Tier.L2, lane=None, group=0, keys=short(keys))


def removed(keys: bytes) -> KvEvent:
    """L2 has lost pages."""
    return PagesRemoved(tier=Tier.L2, lane=None, group=0, keys=short(keys))


class Service:
    """An ingress whose nodes have told all."""

    def __init__(self, num_nodes: int, pages_per_node: int) -> None:
        self.ingress = Ingress(SoonestNode())
        self.random = np.random.default_rng(1)
        self.nodes = [NodeId(number) for number in range(num_nodes)]
        self.held: list[bytes] = []
        for node in self.nodes:
            keys = random_keys(self.random, pages_per_node)
            self.held.append(keys[: PROMPT_PAGES // 2 * KEY_BYTES])
            self.ingress.handle(NodeFound(node=node, name=f"n{node}"), 0.0)
            self.ingress.handle(FollowingBegun(node=node), 0.0)
            self.tell(node, stored(keys))
            self.ingress.handle(NodeReported(node=node, report=LOAD), 0.0)

    def tell(self, node: NodeId, *events: KvEvent) -> None:
        """A message of a node."""
        news = KvNews(events=events, is_whole=True)
        self.ingress.handle(NodeNews(node=node, news=news), 0.0)

    def route_s(self, num_requests: int) -> float:
        """The seconds to choose a node for a request, which then gets its first token."""
        askings = []
        for number in range(num_requests):
            keys = self.held[number % len(self.held)]
            keys += random_keys(self.random, PROMPT_PAGES - len(keys) // KEY_BYTES)
            name = RequestId(f"r{number}")
            num_tokens = PROMPT_PAGES * PAGE_SIZE + 1
            askings.append(Asking(request_id=name, keys={PAGE_SIZE: keys}, num_tokens=num_tokens))
        started_s = thread_time()
        for asking in askings:
            self.ingress.route(asking, 0.0)
            self.ingress.note_first_token(asking.request_id, 0.1)
        return (thread_time() - started_s) / num_requests

    def changes_per_s(self, num_messages: int) -> float:
        """The pages that come or go per second of a core, in messages of one node after the other.

        Each node stores pages and loses as many that it had stored before.
        """
        count = num_messages * PAGES_PER_MESSAGE * KEY_BYTES
        keys = self.random.bytes(count)
        parts = [
            keys[at : at + count // num_messages] for at in range(0, count, count // num_messages)
        ]
        events = [(stored(each), removed(each)) for each in parts]
        started_s = thread_time()
        for number, (new, old) in enumerate(events):
            node = self.nodes[number % len(self.nodes)]
            self.tell(node, new)
            self.tell(node, old)
        return 2 * num_messages * PAGES_PER_MESSAGE / (thread_time() - started_s)


def measure(num_nodes: int, pages_per_node: int) -> Iterator[Figure]:
    """The figures for so many nodes."""
    tracemalloc.start()
    service = Service(num_nodes, pages_per_node)
    num_bytes = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    per_key = num_bytes / (num_nodes * pages_per_node)
    service.route_s(3)
    route_ms = 1000 * service.route_s(max(5, 2_000 // num_nodes))
    yield Figure(name=f"bytes_per_key_{num_nodes}_nodes", value=per_key, unit="bytes")
    yield Figure(name=f"route_{num_nodes}_nodes", value=route_ms, unit="ms")
    yield Figure(
        name=f"changes_{num_nodes}_nodes", value=service.changes_per_s(2_000), unit="pages/s"
    )


def main() -> int:
    """Returns 0: there are no bars."""
    parser = make_parser(__doc__)
    parser.add_argument("--nodes", type=count, nargs="+", default=[4, 16, 100, 1000])
    parser.add_argument("--pages", type=count, default=20_000, help="that each node has")
    add_keep(parser)
    arguments = parser.parse_args()
    figures = [each for num in arguments.nodes for each in measure(num, arguments.pages)]
    config = {"pages": arguments.pages, "prompt_pages": PROMPT_PAGES, "page_size": PAGE_SIZE}
    return report("ingress_scale", config, figures, keep_in=arguments.keep)


if __name__ == "__main__":
    run(main)
