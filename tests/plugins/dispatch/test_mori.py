"""The adapter of MORI against a fake of it: see `fake_mori`."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from raydix.moe.dispatch.libraries import trial_obstacle
from raydix.moe.dispatch.protocol import Dispatcher, DispatchForm
from raydix.plugins.dispatch.mori import MoriDispatcher, mori_obstacle
from tests.moe.dispatch_conformance import (
    CPU,
    SMALL,
    Setting,
    check_rounds,
    on_threads,
)
from tests.plugins.dispatch.fake_mori import FakeMori


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("num_ranks", [2, 3])
@pytest.mark.parametrize("form", list(DispatchForm))
def test_on_a_fake_of_mori_tokens_come_back_from_their_experts(
    form: DispatchForm,
    num_ranks: int,
    dtype: torch.dtype,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shape = replace(SMALL, num_ranks=num_ranks, dtype=dtype)
    for name, module in FakeMori(num_ranks).modules().items():
        monkeypatch.setitem(sys.modules, name, module)

    def body(dispatcher: Dispatcher, rank: int) -> None:
        assert trial_obstacle(dispatcher, shape, form, CPU) is None
        check_rounds(dispatcher, rank, Setting(shape=shape), form, seed=num_ranks)

    on_threads(
        tmp_path / "meeting",
        num_ranks,
        lambda store, rank: MoriDispatcher(store, rank, shape, CPU),
        body,
    )


def test_shapes_that_mori_lacks_are_refused() -> None:
    assert mori_obstacle(SMALL) is None
    assert "here are 16" in str(mori_obstacle(replace(SMALL, num_ranks=16)))
    assert "float16" in str(mori_obstacle(replace(SMALL, dtype=torch.float16)))
