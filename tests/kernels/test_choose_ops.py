import importlib.util
import logging
from importlib.machinery import ModuleSpec

import pytest
import torch

from raydix.kernels import ops


def choose(
    monkeypatch: pytest.MonkeyPatch,
    installed: str | None,
    dtype: torch.dtype = torch.bfloat16,
    head_dim: int = 128,
) -> ops.ModelOps:
    """Choose on a machine with a GPU and this Triton."""
    found = None if installed is None else ModuleSpec("triton", None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: found)
    monkeypatch.setattr(ops, "_triton_version", lambda: installed)
    return ops.choose_ops(
        torch.device("cuda"),
        dtype,
        head_counts=[(32, 8)],
        head_dims=[64, head_dim],
        expert_sizes=(),
    )


@pytest.mark.parametrize(
    ("installed", "dtype", "head_dim", "reason"),
    [
        (None, torch.bfloat16, 128, "triton is not installed"),
        ("3.9.0", torch.bfloat16, 128, "triton is 3.9.0; the kernels know 3.6, 3.7, 3.8"),
        ("3.5.1", torch.bfloat16, 128, "triton is 3.5.1"),
        ("3.8.0", torch.float16, 128, "model.dtype is torch.float16"),
        ("3.8.0", torch.bfloat16, 520, "heads are 520 wide; the Triton kernels know 512 or less"),
    ],
)
def test_what_triton_cannot_do_plain_operations_do_and_the_log_says_why(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    installed: str | None,
    dtype: torch.dtype,
    head_dim: int,
    reason: str,
) -> None:
    with caplog.at_level(logging.WARNING):
        chosen = choose(monkeypatch, installed, dtype, head_dim)

    assert isinstance(chosen, ops.ReferenceOps)
    assert reason in caplog.text
