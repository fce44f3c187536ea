"""The page about the simulation names the mutants that there are."""

import re
from pathlib import Path
from types import ModuleType

import pytest

from tests.simulation import (
    test_batch_mutants,
    test_device,
    test_eviction_mutants,
    test_expert_mutants,
    test_follower_mutants,
    test_grammar_mutants,
    test_hand_overs,
    test_link_mutants,
    test_mutants,
    test_pulls,
    test_reuse_laws,
    test_shared_l2,
    test_turn_mutants,
    test_window_mutants,
)

ROWS = re.findall(
    r"^\| (`.+`) \| `(\w+\.py)`", (Path(__file__).parent / "README.md").read_text(), flags=re.M
)


@pytest.mark.parametrize(
    "module",
    [
        test_mutants,
        test_window_mutants,
        test_turn_mutants,
        test_reuse_laws,
        test_link_mutants,
        test_batch_mutants,
        test_shared_l2,
        test_pulls,
        test_expert_mutants,
        test_follower_mutants,
        test_grammar_mutants,
        test_hand_overs,
        test_device,
        test_eviction_mutants,
    ],
    ids=lambda module: module.__name__.rpartition(".")[2],
)
def test_every_mutant_is_listed(module: ModuleType) -> None:
    listed = {file: re.findall(r"`(\w+)`", names) for names, file in ROWS}

    file = f"{module.__name__.rpartition('.')[2]}.py"

    # Some are found in more than one world.
    assert listed[file] == list(dict.fromkeys(case.mutant.__name__ for case in module.CASES))
