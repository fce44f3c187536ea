"""LongRoPE is chosen once by the context that is served; fused matrices are taken apart."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from raydix.errors import CheckpointError
from raydix.runtime.model.checkpoint.checkpoint import load_model
from raydix.runtime.model.checkpoint.checkpoint_config import read_checkpoint_config
from raydix.runtime.model.decoder.rope import RotaryEmbedding
from raydix.runtime.model.families.table import Family
from raydix.runtime.model.spec.rope_spec import LongRope
from raydix.runtime.model.spec.spec import ropes_of
from tests.checkpoints import make_checkpoint
from tests.runtime.model.families.heads import ACCEPTED

CPU = torch.device("cpu")
HEAD, _ = ACCEPTED["phi3"]


def read_rope(folder: Path, max_model_len: int | None = None, **changes: object) -> LongRope:
    """The one rotary embedding of Phi-4-mini, for requests of so many tokens."""
    (folder / "config.json").write_text(json.dumps({**HEAD, **changes}))
    config = read_checkpoint_config(folder).up_to(max_model_len)
    [rope] = set(ropes_of(config.spec.layers))
    assert isinstance(rope, LongRope)
    return rope


@pytest.mark.parametrize(
    ("max_model_len", "is_long"), [(None, True), (4097, True), (4096, False), (1, False)]
)
def test_factors_are_those_of_the_longest_context_that_is_served(
    max_model_len: int | None, is_long: bool, tmp_path: Path
) -> None:
    rope = read_rope(tmp_path, max_model_len)

    assert rope.is_long is is_long
    factors = torch.tensor(rope.long_factors if is_long else rope.short_factors)
    slowest = 10_000.0 ** -(torch.arange(48) / 48) / factors
    cos, _ = RotaryEmbedding(rope, 96, CPU).tables(torch.tensor([1]), torch.float32)
    torch.testing.assert_close(cos[0, :48], slowest.cos() * rope.attention_factor)


def test_a_model_without_a_longer_context_has_the_short_factors(tmp_path: Path) -> None:
    assert not read_rope(tmp_path, max_position_embeddings=4096).is_long


def test_keys_of_one_set_of_factors_are_not_taken_for_those_of_the_other(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(HEAD))
    config = read_checkpoint_config(tmp_path)

    digests = {config.up_to(length).spec.digest() for length in (None, 4097, 4096, 100)}

    assert len(digests) == 2


def test_cos_and_sin_grow_with_the_context_as_the_paper_says(tmp_path: Path) -> None:
    # The square root of 1 + ln 32 / ln 4096, whichever factors are used.
    assert read_rope(tmp_path).attention_factor == pytest.approx(1.19024, abs=1e-5)
    assert read_rope(tmp_path, 100).attention_factor == pytest.approx(1.19024, abs=1e-5)


def test_rows_that_are_not_those_of_the_config_are_named(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, Family.PHI3, seed=0)
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.1.self_attn.qkv_proj.weight"
    save_file({**tensors, name: tensors[name][:-8].clone()}, folder / "model.safetensors")

    with pytest.raises(CheckpointError, match=f"{name} has 72 rows; the config asks for 80"):
        load_model(folder, device=CPU, dtype=torch.float32)
