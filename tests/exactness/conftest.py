"""A tiny checkpoint of each family, and transformers' view of it, once per session."""

import dataclasses
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from raydix.runtime.actors import torch_model
from raydix.runtime.actors.supervision import engine_actors
from raydix.runtime.actors.supervision.core_settings import scheduler_settings
from raydix.runtime.model.families.table import Family
from raydix.runtime.model.spec.kv_groups import derive_kv_groups
from tests.checkpoints import make_checkpoint
from tests.exactness.engines import CACHING_KINDS, places
from tests.exactness.reference import Reference, References

_HEADS = {"num_attention_heads": 12}
"""Four ranks have three query heads each; of the 2 KV heads two ranks have the same one."""
_LATENT_HEADS = {**_HEADS, "num_key_value_heads": 12}
_UNTIED = {**_HEADS, "tie_word_embeddings": False}
"""A small random Gemma with tied embeddings says its prompt's last token for ever."""
_OVERRIDES = {
    Family.DEEPSEEK_V2: _LATENT_HEADS,
    Family.DEEPSEEK_V3: _LATENT_HEADS,
    Family.KIMI_K2: _LATENT_HEADS,
    Family.KIMI_K25: _LATENT_HEADS,
    Family.GEMMA2: _UNTIED,
    Family.GEMMA3: _UNTIED,
    Family.GEMMA3_WITH_VISION: _UNTIED,
    Family.GEMMA4: _UNTIED,
    # Of its five layers the last three have no keys and values of their own.
    Family.GEMMA4_WITH_TOWERS: {**_UNTIED, "num_hidden_layers": 5},
    Family.GEMMA4_UNIFIED_TEXT: {**_UNTIED, "num_hidden_layers": 5},
    Family.GEMMA4_UNIFIED: _UNTIED,
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that takes `device` and `tp` runs at several degrees, of GPUs by `--ranks`.

    One that takes `caching_kind` runs with a family of each kind of cache. With `--full-grid` the
    one runs at degree 4, too, the other with every family.
    """
    is_full = metafunc.config.getoption("--full-grid")
    if {"device", "tp"} <= set(metafunc.fixturenames):
        more = [("cpu", 4)] if is_full else []
        given = places(metafunc.config.getoption("--ranks"))
        metafunc.parametrize(("device", "tp"), [*given, *more])
    if "caching_kind" in metafunc.fixturenames:
        metafunc.parametrize("caching_kind", list(Family) if is_full else CACHING_KINDS)


@pytest.fixture(scope="session")
def references(tmp_path_factory: pytest.TempPathFactory) -> References:
    """The checkpoint of a family with two layers, made on first use."""
    made: dict[tuple[Family, int | None], Reference] = {}

    def get(family: Family, window: int | None = None) -> Reference:
        if (family, window) not in made:
            folder = tmp_path_factory.mktemp(family.name)
            overrides = _OVERRIDES.get(family, _HEADS)
            if window is not None:
                overrides = {**overrides, "sliding_window": window}
            made[family, window] = Reference(
                make_checkpoint(folder, family, seed=11, **{"num_hidden_layers": 2, **overrides})
            )
        return made[family, window]

    return get


@pytest.fixture(autouse=True, scope="module")
def patient_scheduler() -> Iterator[None]:
    """HostMemory is never too silent: a busy machine must not decide which tier a test reaches."""

    def patient(*arguments: Any) -> Any:
        return dataclasses.replace(scheduler_settings(*arguments), lookup_deadline_s=60.0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_actors, "scheduler_settings", patient)
        yield


@pytest.fixture(autouse=True, scope="session")
def split_kv_groups(request: pytest.FixtureRequest) -> Iterator[None]:
    """Split every model's layers into two KV groups of one layer each, for `--split-kv-groups`."""
    with pytest.MonkeyPatch.context() as patch:
        if request.config.getoption("--split-kv-groups"):
            group_layers = partial(derive_kv_groups, split_at=(1,))
            split = partial(torch_model.load_gpu_model, group_layers=group_layers)
            patch.setattr(torch_model, "load_gpu_model", split)
        yield
