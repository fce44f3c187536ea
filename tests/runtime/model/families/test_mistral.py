"""What the language model of a Mistral 3 may be, and how its queries grow."""

import json
from pathlib import Path
from typing import Any

import pytest

from raydix.errors import CheckpointError
from raydix.runtime.model.checkpoint.checkpoint_config import (
    CheckpointConfig,
    read_checkpoint_config,
)
from raydix.runtime.model.spec.rope_spec import DefaultRope, YarnRope
from raydix.runtime.model.spec.spec import ropes_of
from tests.runtime.model.families.heads import ACCEPTED

HEAD, _ = ACCEPTED["mistral3 fp8"]
YARN = HEAD["text_config"]["rope_parameters"]


def read(folder: Path, whole: dict[str, Any], **text: Any) -> CheckpointConfig:
    """A Mistral 3 with such fields beside and in the section of its language model."""
    section = {**HEAD["text_config"], **text}
    (folder / "config.json").write_text(json.dumps({**HEAD, "text_config": section, **whole}))
    return read_checkpoint_config(folder)


def test_queries_of_a_ministral_grow_past_the_original_context(tmp_path: Path) -> None:
    [rope] = set(ropes_of(read(tmp_path, {}).spec.layers))

    assert isinstance(rope, YarnRope)
    assert (rope.query_growth, rope.original_max_positions) == (0.1, 16_384)


def test_the_language_model_may_be_a_mistral(tmp_path: Path) -> None:
    rope = {"rope_type": "default", "rope_theta": 1e9}
    config = read(tmp_path, {}, model_type="mistral", rope_parameters=rope)

    assert set(ropes_of(config.spec.layers)) == {DefaultRope(theta=1e9)}


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "of another kind": (
        {"model_type": "llama", "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
        "model_type 'llama'; supported are 'mistral' and 'ministral3'",
    ),
    "whose queries grow without YaRN": (
        {"rope_parameters": {**YARN, "rope_type": "default"}},
        "rope_type is 'default' beside llama_4_scaling_beta; expected 'yarn'",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_language_model_that_is_not_known_is_refused(name: str, tmp_path: Path) -> None:
    fields, message = REFUSED[name]

    with pytest.raises(CheckpointError, match=message):
        read(tmp_path, {}, **fields)


@pytest.mark.parametrize(
    ("whole", "text", "are_tied"),
    [(False, True, False), (True, False, True), (None, True, True), (None, False, False)],
)
def test_the_whole_config_says_first_whether_the_embedding_is_the_head(
    whole: bool | None, text: bool, are_tied: bool, tmp_path: Path
) -> None:
    beside = {} if whole is None else {"tie_word_embeddings": whole}

    assert read(tmp_path, beside, tie_word_embeddings=text).spec.tied_embeddings is are_tied
