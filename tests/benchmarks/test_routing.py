"""The benchmark of routing on a short trace, and what its nodes tell."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.cores.routed_nodes import KeyNews, NodeSpeed, RoutedNode, Served
from benchmarks.routing import TRACES
from raydix.runtime.foresight.simulator.clock import Clock
from raydix.runtime.foresight.traces import BLOCK_TOKENS, TraceRequest
from raydix.runtime.messages.line import Line

FAST = NodeSpeed(num_blocks=10, prefill_tokens_per_s=1024.0, start_tokens_per_s=1024.0)


def request(*blocks: int) -> TraceRequest:
    """A prompt of whole blocks and one more token."""
    return TraceRequest(
        blocks=blocks,
        partial_block=None,
        num_tokens=len(blocks) * BLOCK_TOKENS + 1,
        num_answer_tokens=1,
        arrival_s=0.0,
        end_s=0.0,
        session=1,
        next_s=None,
    )


def test_a_node_computes_what_it_lacks_and_tells_what_it_keeps() -> None:
    clock, told = Clock(), list[KeyNews]()
    node = RoutedNode(0, FAST, clock, told.append)
    first, second = Served(request(*range(8)), 0.0), Served(request(*range(4), 20, 21, 22, 23), 0.0)

    node.take(first, [])
    node.take(second, [])
    assert node.busy_s() == pytest.approx((8 + 4) * 0.5, rel=0.01)
    clock.run()

    assert (first.num_hit_tokens, second.num_hit_tokens) == (0, 4 * BLOCK_TOKENS)
    assert second.first_token_s == pytest.approx(6.0, abs=0.01)
    assert told[0] == KeyNews(0, [], tuple(range(8)), None)
    assert (told[1].removed, told[1].stored, told[1].parent) == ([6, 7], (20, 21, 22, 23), 3)
    assert sorted(node.blocks) == [0, 1, 2, 3, 4, 5, 20, 21, 22, 23]


def test_a_node_waits_for_what_it_pulls_and_computes_the_rest() -> None:
    clock = Clock()
    speed = dataclasses.replace(FAST, pull=Line(0.1, 0.05))
    nodes = [RoutedNode(index, speed, clock, lambda news: None) for index in range(2)]
    nodes[0].take(Served(request(*range(8)), 0.0), [])
    clock.run()
    start_s = clock.now_s

    served = Served(request(*range(9)), start_s)
    nodes[1].take(served, [nodes[0]])
    clock.run()

    assert served.num_pulled_tokens == served.num_hit_tokens == 8 * BLOCK_TOKENS
    assert served.first_token_s == pytest.approx(start_s + 0.5 + 0.5, abs=0.01)


def test_what_another_node_has_counts_unless_it_is_here_or_on_its_way() -> None:
    clock = Clock()
    nodes = [RoutedNode(index, FAST, clock, lambda news: None) for index in range(2)]
    nodes[0].take(Served(request(*range(8)), 0.0), [])
    clock.run()

    first, second = Served(request(*range(6)), clock.now_s), Served(request(*range(8)), clock.now_s)
    nodes[1].take(first, [nodes[0]])
    nodes[1].take(second, [nodes[0]])

    counted = first.num_elsewhere_tokens, second.num_elsewhere_tokens
    assert counted == (6 * BLOCK_TOKENS, 2 * BLOCK_TOKENS)


@pytest.mark.part
@pytest.mark.slow
def test_ways_to_choose_are_compared(tmp_path: Path) -> None:
    lines = ["--requests", "150", "--agent-requests", "60", "--index-keys", "10000"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.routing", *lines],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=TRACES.parent.parent,
    )

    figures = {each["name"]: each["value"] for each in json.loads(done.stdout)["figures"]}
    for name in ("soonest", "round_robin", "session_hash", "ray", "pull", "agents"):
        assert 0 < figures[f"{name}_hits"] < 100
        assert figures[f"{name}_first_token_p90"] > 0
    assert figures["soonest_hits"] <= figures["infinite_cache_hits"]
    assert figures["infinite_cache_computed"] <= figures["one_cache_computed"]
    assert 0 < figures["elsewhere"] < 1
    assert figures["index_bytes_per_key"] < 6
