"""Which published models are served, by the heads of their config.json, and what others lack."""

import json
from pathlib import Path

import pytest

from raydix.errors import CheckpointError
from raydix.runtime.config.kv_layout import GroupKind
from raydix.runtime.model.checkpoint.checkpoint_config import (
    read_checkpoint_config,
    require_supported,
)
from raydix.runtime.model.checkpoint.model_sizes import measure_model
from raydix.runtime.model.families.refused import NOT_COMPUTED
from raydix.runtime.model.families.table import Family
from raydix.runtime.model.spec.kv_groups import derive_kv_groups
from tests.runtime.model.families.head_parts import Head
from tests.runtime.model.families.heads import ACCEPTED, BILLIONS, REFUSED

BF16_BYTES = 2


def write_config(folder: Path, head: Head) -> Path:
    (folder / "config.json").write_text(json.dumps(head))
    return folder


@pytest.mark.parametrize("name", ACCEPTED)
def test_a_served_model_is_read_with_the_cache_that_it_takes(name: str, tmp_path: Path) -> None:
    head, kib_per_token = ACCEPTED[name]

    config = read_checkpoint_config(write_config(tmp_path, head))

    text = head.get("text_config", head)
    assert config.family.value.model_type == head["model_type"]
    assert config.spec.num_layers == text["num_hidden_layers"]
    groups = derive_kv_groups(config.spec.layers)
    seeing_all = [group for group in groups if group.kind is not GroupKind.WINDOW]
    num_bytes = BF16_BYTES * sum(group.token_elements for group in seeing_all)
    assert num_bytes / 1024 == kib_per_token


@pytest.mark.part
@pytest.mark.parametrize("name", BILLIONS)
def test_a_served_model_has_as_many_weights_as_it_was_published_with(
    name: str, tmp_path: Path
) -> None:
    folder = write_config(tmp_path, ACCEPTED[name][0])

    sizes = measure_model(folder, dtype="bfloat16", tp=1, page_size=64)

    assert sizes.rank_bytes / BF16_BYTES / 1e9 == pytest.approx(BILLIONS[name], rel=0.005)


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_model_is_told_by_name_with_what_is_lacking(name: str, tmp_path: Path) -> None:
    head, words = REFUSED[name]
    folder = write_config(tmp_path, head)

    with pytest.raises(CheckpointError, match=f"model_type '{head['model_type']}'.*{words}"):
        require_supported(folder)


def test_no_model_is_both_served_and_said_to_be_lacking() -> None:
    assert NOT_COMPUTED.keys().isdisjoint(family.value.model_type for family in Family)
