"""Made-up traces are chains of blocks of sessions, the same for the same seed."""

from dataclasses import replace

import pytest

from raydix.runtime.foresight.traces import BLOCK_TOKENS
from raydix.runtime.foresight.workloads import Shape, make_trace

SMALL = Shape(num_sessions=6, mean_turns=5.0, child_fraction=0.2)


def test_the_same_seed_makes_the_same_trace() -> None:
    first, again, other = (make_trace(SMALL, seed) for seed in (1, 1, 2))
    assert [each.blocks for each in first] == [each.blocks for each in again]
    assert [each.blocks for each in first] != [each.blocks for each in other]


def test_a_block_stands_for_all_that_comes_before_it() -> None:
    before: dict[int, int | None] = {}
    for request in make_trace(SMALL, 1):
        for index, block in enumerate(request.blocks):
            parent = request.blocks[index - 1] if index else None
            assert before.setdefault(block, parent) == parent
        assert len(request.blocks) == request.num_tokens // BLOCK_TOKENS


def test_sessions_go_on_when_they_were_said_to() -> None:
    coming: dict[int, float | None] = {}
    for request in make_trace(replace(SMALL, child_fraction=0.0), 3):
        if request.session in coming:
            assert request.arrival_s == pytest.approx(coming[request.session])
        coming[request.session] = request.next_s
    assert set(coming.values()) == {None}, "each ends"
