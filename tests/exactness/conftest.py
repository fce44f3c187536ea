"""A tiny checkpoint of each family, and transformers' view of it, once per session."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest

from raydix.runtime.actors.supervision import engine_actors
from raydix.runtime.actors.supervision.core_settings import scheduler_settings
from raydix.runtime.model.families.table import Family
from tests.checkpoints import make_checkpoint
from tests.exactness.reference import Reference, References


@pytest.fixture(scope="session")
def references(tmp_path_factory: pytest.TempPathFactory) -> References:
    """The checkpoint of a family with two layers, made on first use."""
    made: dict[Family, Reference] = {}

    def get(family: Family) -> Reference:
        if family not in made:
            folder = tmp_path_factory.mktemp(family.name)
            made[family] = Reference(make_checkpoint(folder, family, seed=11, num_hidden_layers=2))
        return made[family]

    return get


@pytest.fixture(autouse=True, scope="module")
def patient_scheduler() -> Iterator[None]:
    """HostMemory never counts as silent: a busy machine must not decide which tier a test reaches."""

    def patient(*arguments: Any) -> Any:
        return dataclasses.replace(scheduler_settings(*arguments), lookup_deadline_s=60.0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_actors, "scheduler_settings", patient)
        yield
