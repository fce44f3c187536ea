"""Latent attention computes the same in both of its forms, and takes the cheaper one."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from raydix.kernels.attention.rows import PrefillRow
from raydix.runtime.model.checkpoint.checkpoint import load_model
from raydix.runtime.model.decoder import decoder
from raydix.runtime.model.decoder.latent_attention import pays_to_expand
from raydix.runtime.model.families.table import Family
from tests.checkpoints import LOGITS_TOLERANCE, make_checkpoint
from tests.runtime.model.spec.test_spec import LATENT_ATTENTION
from tests.runtime.model.steps.plan_driver import PlanDriver

DEEPSEEK_V3 = replace(
    LATENT_ATTENTION, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128
)


@pytest.mark.parametrize(
    ("num_tokens", "context_tokens", "expected"),
    [(2, 2, False), (300, 300, False), (400, 400, True), (100, 9000, False), (200, 9000, True)],
)
def test_rows_of_many_new_tokens_are_expanded(
    num_tokens: int, context_tokens: int, expected: bool
) -> None:
    row = PrefillRow(row=0, first_token=0, num_tokens=num_tokens, context_tokens=context_tokens)

    assert pays_to_expand(DEEPSEEK_V3, row) is expected


def test_a_narrow_latent_is_never_expanded() -> None:
    spec = replace(LATENT_ATTENTION, kv_lora_rank=4)

    assert not pays_to_expand(
        spec, PrefillRow(row=0, first_token=0, num_tokens=10**6, context_tokens=10**6)
    )


def test_both_forms_give_the_same_logits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_checkpoint(tmp_path, Family.DEEPSEEK_V3, seed=1)
    model = load_model(tmp_path, device=torch.device("cpu"), dtype=torch.float32)
    chosen: list[bool] = []

    def logits(is_expanded: bool) -> torch.Tensor:
        def choose(*_: object) -> bool:
            chosen.append(is_expanded)
            return is_expanded

        monkeypatch.setattr(decoder, "pays_to_expand", choose)
        driver = PlanDriver(model)
        driver.record_logits()
        # A decode row and rows that extend a prefix share their steps with a prompt's first row.
        first = driver.add(0, list(range(20)))
        driver.generate([first], 2)
        driver.generate([first, driver.add(1, list(range(50, 90)))], 3, chunk=15)
        return torch.cat(driver.logits)

    absorbed, expanded = logits(False), logits(True)

    assert chosen.count(True) == chosen.count(False) > 3
    torch.testing.assert_close(
        expanded, absorbed, rtol=0, atol=LOGITS_TOLERANCE * float(absorbed.abs().max())
    )
