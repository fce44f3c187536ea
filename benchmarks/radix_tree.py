"""Time the radix tree on a conversation trace, and its eviction against the size of the tree.

    python -m benchmarks.radix_tree

Replays the first 6,000 requests one after another at page size 16 and 4M tokens of capacity, and
reports medians over the second half: `match` as the prompt arrives, `match_fully_cached` once all
of it is in. Preparing the key (packing tokens, hashing page keys) is timed apart. The eviction load
inserts prompts of 1,024 tokens behind 1,000 distinct first blocks into trees of 1k and of 30k
nodes. `evict_per_victim` is one call's time by what it took: whole leaves, and the tail of the last
one. The step load holds 65,536 leaves of one page, inspected a sixteenth ahead as before backups;
each of 100,000 rounds adds a leaf and evicts a page. The tail load takes one leaf of 131,072 tokens
page by page. The window load takes pages of a WINDOW group that reaches 8 pages back, two at a
time, out of 1k and of 30k chains of 16 pages. Everything runs `--repeats` times and the best median
counts: other processes share the machine's caches.
"""

import gzip
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np

from benchmarks.records.command_line import count, make_parser, run
from benchmarks.records.record import Figure, report
from raydix.ids import PageKey
from raydix.runtime.cache.page_key import KEY_BYTES, extend_keys, pack_tokens, root_key
from raydix.runtime.cache.page_pool import PagePool
from raydix.runtime.cache.radix_node import Segment
from raydix.runtime.cache.radix_tree import RadixTree
from raydix.runtime.config.policies import EvictionPolicy
from raydix.runtime.messages.arrays import Int32Array, int32_array

TRACE = Path(__file__).parent / "traces" / "conversation.jsonl.gz"
BLOCK_TOKENS = 512
SWEEP_PROMPT_TOKENS = 1024
SWEEP_FIRST_BLOCKS = 1000
SWEEP_NODES = (1_000, 30_000)
SWEEP_REQUESTS = 4000
NUM_STEP_LEAVES = 65_536
NUM_STEPS = 100_000
TAIL_TOKENS = 131_072
WINDOW_PAGES = 8

Times = dict[str, list[float]]


def trace_prompts(num_requests: int) -> Iterator[Int32Array]:
    """The prompts of the trace; block h holds the numbers 512 h to 512 h + 511."""
    block = np.arange(BLOCK_TOKENS, dtype=np.int32)
    with gzip.open(TRACE, "rt") as lines:
        for _, line in zip(range(num_requests), lines, strict=False):
            request = json.loads(line)
            hashes = np.array(request["hash_ids"], dtype=np.int32)
            tokens = hashes[:, None] * np.int32(BLOCK_TOKENS) + block
            yield tokens.reshape(-1)[: request["input_length"]]


class Replay:
    """One L1 that serves prompts one at a time; times are in seconds, one list per operation."""

    def __init__(self, *, page_size: int, num_pages: int, eviction: EvictionPolicy) -> None:
        self.tree = RadixTree(page_size=page_size, eviction=eviction)
        self.pool = PagePool(num_pages)
        self.times: Times = defaultdict(list)
        self._page_size = page_size
        self._identity = root_key()
        self._now_s = 0.0

    def serve(self, token_ids: Int32Array, keys: bytes | None = None) -> int:
        """Match, lock, make room, insert, unlock; returns how many pages were cached.

        `keys` spares the hashing.
        """
        # Not in a `with` block for each time: entering one takes a good part of what is measured.
        tree, pool, times = self.tree, self.pool, self.times
        self._now_s += 1.0
        started = perf_counter()
        packed = pack_tokens(token_ids)
        times["pack"].append(perf_counter() - started)

        started = perf_counter()
        match = tree.match(self._identity, packed)
        times["match"].append(perf_counter() - started)

        started = perf_counter()
        lock = tree.lock(match, match.num_pages, now_s=self._now_s)
        times["lock"].append(perf_counter() - started)

        rest = packed[match.num_pages * self._page_size * 4 :]
        new_keys = self._new_keys(match.last_key, rest, match.num_pages, keys)
        num_new = len(new_keys) // KEY_BYTES
        self._make_room(num_new)
        page_ids = pool.allocate(num_new)
        assert page_ids is not None, "the pool is smaller than one prompt"

        started = perf_counter()
        tree.insert(lock, rest, (page_ids,), new_keys, segment=Segment.PROMPT, now_s=self._now_s)
        times["insert"].append(perf_counter() - started)

        started = perf_counter()
        tree.unlock(lock, last_step=0)
        times["unlock"].append(perf_counter() - started)

        started = perf_counter()
        tree.match(self._identity, packed)
        times["match_fully_cached"].append(perf_counter() - started)
        return match.num_pages

    def _new_keys(
        self, parent: PageKey, rest: bytes, num_matched: int, keys: bytes | None
    ) -> bytes:
        if keys is not None:
            return keys[num_matched * KEY_BYTES :]
        started = perf_counter()
        new_keys = extend_keys(parent, rest, self._page_size)
        self.times["page_keys"].append(perf_counter() - started)
        return new_keys

    def _make_room(self, num_pages: int) -> None:
        num_missing = num_pages - self.pool.num_free
        if num_missing <= 0:
            return
        started = perf_counter()
        victims = self.tree.evict((num_missing,))
        elapsed = perf_counter() - started
        self.times["evict"].append(elapsed)
        self.times["evict_per_victim"].append(elapsed / len(victims))
        self.pool.release(np.concatenate([victim.page_ids[0] for victim in victims]), after_step=-1)


def replay_trace(
    eviction: EvictionPolicy, *, page_size: int, capacity_tokens: int, num_requests: int
) -> list[Figure]:
    """Medians in microseconds over the second half of the trace's first `num_requests` requests."""
    replay = Replay(page_size=page_size, num_pages=capacity_tokens // page_size, eviction=eviction)
    num_cached_pages = num_tokens = 0

    for index, prompt in enumerate(trace_prompts(num_requests)):
        if index == num_requests // 2:
            replay.times.clear()
        num_cached_pages += replay.serve(prompt)
        num_tokens += len(prompt)
    replay.tree.check()
    replay.pool.check()

    bars = {"match": 8.0, "insert": 40.0, "evict_per_victim": 5.0}
    figures = [
        Figure(
            name=f"{eviction}_{name}",
            value=median(times) * 1e6,
            unit="us",
            max_value=bars.get(name),
        )
        for name, times in replay.times.items()
    ]
    percentiles = [
        Figure(
            name=f"{eviction}_{name}_p99",
            value=float(np.percentile(replay.times[name], 99)) * 1e6,
            unit="us",
        )
        for name in ("match", "insert", "evict")
    ]

    tree_s = sum(sum(replay.times[name]) for name in ("match", "lock", "insert", "unlock", "evict"))
    return [
        *figures,
        *percentiles,
        Figure(
            name=f"{eviction}_tree_mean_per_request",
            value=tree_s / (num_requests / 2) * 1e6,
            unit="us",
        ),
        Figure(name=f"{eviction}_nodes", value=replay.tree.num_nodes, unit="nodes"),
        Figure(
            name=f"{eviction}_hit_fraction",
            value=num_cached_pages * page_size / num_tokens,
            unit="of input tokens",
        ),
    ]


def best_of(replays: list[list[Figure]]) -> list[Figure]:
    """Figure by figure, the smallest value; counts are the same in all replays."""
    return [min(same, key=lambda figure: figure.value) for same in zip(*replays, strict=True)]


def sweep_eviction(eviction: EvictionPolicy, *, page_size: int, repeats: int) -> list[Figure]:
    """Time per victim in trees of two sizes, and their ratio."""
    tails_s = [
        min(_time_eviction(eviction, num_nodes, page_size) for _ in range(repeats))
        for num_nodes in SWEEP_NODES
    ]

    ratio = Figure(
        name=f"{eviction}_evict_ratio_30k_to_1k",
        value=tails_s[1] / tails_s[0],
        unit="times",
        max_value=1.5,
    )
    return [
        *(
            Figure(
                name=f"{eviction}_evict_per_victim_{num_nodes}_nodes",
                value=tail_s * 1e6,
                unit="us",
                max_value=5.0,
            )
            for num_nodes, tail_s in zip(SWEEP_NODES, tails_s, strict=True)
        ),
        ratio,
    ]


def _time_eviction(eviction: EvictionPolicy, num_nodes: int, page_size: int) -> float:
    """Median seconds per victim in a full tree of about `num_nodes` nodes."""
    # A full tree gives up one leaf per prompt.
    num_first_blocks = min(SWEEP_FIRST_BLOCKS, num_nodes // 2)
    prompt_pages = SWEEP_PROMPT_TOKENS // page_size
    first_pages = BLOCK_TOKENS // page_size
    num_pages = num_first_blocks * first_pages + (num_nodes - num_first_blocks) * (
        prompt_pages - first_pages
    )
    replay = Replay(page_size=page_size, num_pages=num_pages, eviction=eviction)
    tail = np.arange(SWEEP_PROMPT_TOKENS, dtype=np.int32)
    keys = bytes(KEY_BYTES * prompt_pages)  # the tree never looks into a key

    num_warm = num_nodes + SWEEP_REQUESTS
    for index in range(num_warm + SWEEP_REQUESTS):
        if index == num_warm:
            replay.times.clear()
        prompt = tail.copy()
        prompt[0] = -1 - index % num_first_blocks
        prompt[BLOCK_TOKENS] = -1 - index
        replay.serve(prompt, keys)
    replay.tree.check()
    return median(replay.times["evict_per_victim"])


def time_steps(eviction: EvictionPolicy) -> list[Figure]:
    """Percentiles of taking a page and of looking ahead, with as many leaves as an L1 may hold."""
    tree = RadixTree(page_size=1, eviction=eviction)
    times: Times = defaultdict(list)
    for number in range(NUM_STEP_LEAVES + NUM_STEPS):
        _put_leaf(tree, number)
        if number < NUM_STEP_LEAVES:
            continue

        started = perf_counter()
        tree.evict((1,))
        times["evict_1"].append(perf_counter() - started)

        leaves = tree.inspect_ahead(NUM_STEP_LEAVES // 16)
        started = perf_counter()
        while next(leaves, None) is not None:
            times["inspect"].append(perf_counter() - started)
            started = perf_counter()
    tree.check()

    return [
        Figure(
            name=f"{eviction}_{name}_{label}",
            value=float(np.percentile(seconds, percentile)) * 1e6,
            unit="us",
        )
        for name, seconds in times.items()
        for label, percentile in (("p50", 50), ("p99", 99), ("max", 100))
    ]


def _put_leaf(tree: RadixTree, number: int) -> None:
    """One request of one page that no other shares."""
    packed = pack_tokens([number])
    lock = tree.lock(tree.match(root_key(), packed), 0, now_s=float(number))
    page_ids = (int32_array([number + 1]),)
    tree.insert(
        lock, packed, page_ids, bytes(KEY_BYTES), segment=Segment.PROMPT, now_s=float(number)
    )
    tree.unlock(lock, last_step=0)


def time_tails(page_size: int) -> list[Figure]:
    """Time per page of a long leaf that goes one page at a time: each shortens what is left."""
    num_pages = TAIL_TOKENS // page_size
    replay = Replay(page_size=page_size, num_pages=num_pages, eviction=EvictionPolicy.LRU)
    replay.serve(np.arange(TAIL_TOKENS, dtype=np.int32))

    seconds = []
    for _ in range(num_pages):
        started = perf_counter()
        replay.tree.evict((1,))
        seconds.append(perf_counter() - started)
    return [
        Figure(name="tail_of_128k_tokens_p50", value=median(seconds) * 1e6, unit="us"),
        Figure(
            name="tail_of_128k_tokens_p99", value=float(np.percentile(seconds, 99)) * 1e6, unit="us"
        ),
    ]


def sweep_windows(repeats: int) -> list[Figure]:
    """Time to take two pages of a WINDOW group in trees of two sizes, and their ratio."""
    seconds = [min(_time_windows(num_nodes) for _ in range(repeats)) for num_nodes in SWEEP_NODES]

    return [
        *(
            Figure(name=f"window_evict_2_of_{num_nodes}_nodes", value=value * 1e6, unit="us")
            for num_nodes, value in zip(SWEEP_NODES, seconds, strict=True)
        ),
        Figure(
            name="window_evict_ratio_30k_to_1k",
            value=seconds[1] / seconds[0],
            unit="times",
            max_value=1.5,
        ),
    ]


def _time_windows(num_nodes: int) -> float:
    """Median seconds to take two pages out of so many chains, first those in no window."""
    tree = RadixTree(page_size=1, reaches=(None, WINDOW_PAGES))
    for number in range(num_nodes):
        page_ids = int32_array(range(16 * number + 1, 16 * number + 17))
        packed = pack_tokens([number] * 16)
        lock = tree.lock(tree.match(root_key(), packed), 0, now_s=float(number))
        tree.insert(
            lock,
            packed,
            (page_ids, page_ids),
            bytes(16 * KEY_BYTES),
            segment=Segment.PROMPT,
            now_s=float(number),
        )
        tree.unlock(lock, last_step=0)

    seconds = []
    for _ in range(7 * min(SWEEP_NODES)):
        started = perf_counter()
        tree.evict((0, 2))
        seconds.append(perf_counter() - started)
    tree.check()
    return median(seconds)


def main() -> int:
    """Measure, and return 1 below a bar."""
    parser = make_parser(__doc__)
    parser.add_argument("--page-size", type=count, default=16)
    parser.add_argument("--capacity-tokens", type=count, default=4_000_000)
    parser.add_argument("--requests", type=count, default=6000)
    parser.add_argument("--repeats", type=count, default=3)
    options = parser.parse_args()

    figures: list[Figure] = []
    for eviction in (EvictionPolicy.LRU, EvictionPolicy.FIFO):
        replays = [
            replay_trace(
                eviction,
                page_size=options.page_size,
                capacity_tokens=options.capacity_tokens,
                num_requests=options.requests,
            )
            for _ in range(options.repeats)
        ]
        figures += best_of(replays)
        figures += sweep_eviction(eviction, page_size=options.page_size, repeats=options.repeats)
        figures += best_of([time_steps(eviction) for _ in range(options.repeats)])
    figures += sweep_windows(options.repeats)
    figures += best_of([time_tails(options.page_size) for _ in range(options.repeats)])
    return report("radix_tree", vars(options), figures)


if __name__ == "__main__":
    run(main)
