"""The table of a request's states is what requests do: no move is missing, and none too many."""

from collections.abc import Set
from pathlib import Path

import pytest

from raydix.errors import AccountingError
from raydix.runtime.messages.grammar import Grammar, GrammarKind
from raydix.runtime.scheduler.life.transitions import Transitions
from raydix.runtime.scheduler.request import request
from raydix.runtime.scheduler.request.state import MOVES, State, require_move
from tests.runtime.scheduler.core_driver import CoreDriver
from tests.runtime.scheduler.l2_driver import PROMPT
from tests.simulation.workload import draw_workload, run_workload

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "architecture.md"
GRAMMAR = Grammar(kind=GrammarKind.REGEX, text="a")
Move = tuple[State, State]
ALL_MOVES = {(former, new) for former, others in MOVES.items() for new in others}
MAX_SEEDS = 100
SEEDS = (36, 45, 46, *range(MAX_SEEDS))
"""The workloads of the first few take all moves but those that `end_early` takes."""


def end_early() -> None:
    """What simulated clients and ranks hardly ever do in time."""
    driver = CoreDriver(has_host_memory=True, prefill_budget_tokens=64)
    driver.fill_l2(PROMPT)
    driver.abort(driver.submit(PROMPT, max_tokens=1))
    driver.submit(PROMPT, max_tokens=1)
    driver.lose_rank(0)

    driver = CoreDriver()
    driver.abort(driver.submit(PROMPT, grammar=GRAMMAR))
    driver.submit(PROMPT, grammar=GRAMMAR)
    driver.lose_rank(0)

    driver = CoreDriver(num_pages=(2048,), max_model_len=8192)
    # More pages than are hashed in one turn.
    driver.abort(driver.submit(list(range(8000)), max_tokens=1))


def untaken_moves(
    table: Set[Move], monkeypatch: pytest.MonkeyPatch, max_seeds: int = len(SEEDS)
) -> set[Move]:
    """The moves of a table that no request takes in so many workloads, or until all were taken."""
    taken: set[Move] = set()

    def take(name: str, former: State, new: State) -> None:
        require_move(name, former, new)
        taken.add((former, new))

    monkeypatch.setattr(request, "require_move", take)
    end_early()
    for seed in SEEDS[:max_seeds]:
        if table <= taken:
            break
        run_workload(draw_workload(seed))
    return set(table - taken)


def test_every_move_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not untaken_moves(ALL_MOVES, monkeypatch)


def test_the_document_has_the_picture_of_the_table() -> None:
    arrows = [
        f"    {former.value} --> {new.value}: {move}"
        for former, others in MOVES.items()
        for new, move in others.items()
    ]
    picture = "\n".join(["    [*] --> placing", *arrows, "    ended --> [*]"])
    assert f"```mermaid\nstateDiagram-v2\n{picture}\n```" in DOCUMENT.read_text()


def test_every_move_is_made_by_a_transition() -> None:
    names = {move for others in MOVES.values() for move in others.values()}
    assert all(callable(getattr(Transitions, name)) for name in names)


def test_a_move_that_the_table_lacks_is_told_with_both_states() -> None:
    with pytest.raises(AccountingError, match=r"r1 moves from ended to waiting; .* no other"):
        require_move("r1", State.ENDED, State.WAITING)
    with pytest.raises(AccountingError, match=r"from decoding to loading; .* ended, waiting"):
        require_move("r1", State.DECODING, State.LOADING)
