"""A tiny checkpoint of each family, and transformers' view of it, once per session."""

from collections.abc import Callable

import pytest

from raydix.runtime.model.spec import Family
from tests.checkpoints import make_checkpoint
from tests.exactness.reference import Reference

References = Callable[[Family], Reference]


@pytest.fixture(scope="session")
def references(tmp_path_factory: pytest.TempPathFactory) -> References:
    """The checkpoint of a family with two layers, made on first use."""
    made: dict[Family, Reference] = {}

    def get(family: Family) -> Reference:
        if family not in made:
            folder = tmp_path_factory.mktemp(family.value)
            made[family] = Reference(make_checkpoint(folder, family, seed=11, num_hidden_layers=2))
        return made[family]

    return get
