"""What is wrong with a checkpoint, as far as it can be told at once, without torch.

A start asks this before it begins with Ray. `check_weights` knows of every tensor, but takes torch.
"""

import sys
from collections.abc import Mapping, Sequence
from itertools import count, takewhile
from pathlib import Path
from typing import Any

from raydix.errors import CheckpointError
from raydix.runtime.config.paths import HubName
from raydix.runtime.config.sections import ModelSection
from raydix.runtime.model.checkpoint.checkpoint_config import require_supported
from raydix.runtime.model.checkpoint.json_file import read_json
from raydix.runtime.model.checkpoint.left_aside import purpose_left_aside
from raydix.runtime.model.checkpoint.weight_files import list_weights
from raydix.runtime.model.families.table import Family
from raydix.runtime.model.families.weight_names import checkpoint_name, own_name
from raydix.runtime.model.formats.stored_tensor import FETCH_BOTH, StoredTensor


def require_checkpoint(model: ModelSection) -> None:
    """Raise CheckpointError if a configured model cannot be served, by its config.json and weights.

    Of a name on the Hub only the Hub can tell: it is not asked.
    """
    if HubName.parse(model.path) is not None:
        return
    folder = Path(model.path)
    family, quantisation = require_supported(folder)
    if model.load_format == "auto":
        config, section = read_json(folder / "config.json"), family.value.text_section
        text = config if section is None else config[section]
        # Fields that config.json leaves out have defaults, which transformers knows.
        num_layers = text.get("num_hidden_layers") or sys.maxsize
        weights = [
            each
            for each in list_weights(folder)
            if purpose_left_aside(each.name, family.value, num_layers) is None
        ]
        quantisation.plan(weights)
        _require_same_model(folder, weights, text, family)


def _require_same_model(
    folder: Path, weights: Sequence[StoredTensor], config: Mapping[str, Any], family: Family
) -> None:
    """Raise CheckpointError for weights beside the config.json of another model."""
    shapes = {own_name(each.name): each.shape for each in weights}
    names = family.value.weight_names

    embedding = checkpoint_name("embedding.weight", names)
    expected = [config.get("vocab_size"), config.get("hidden_size")]
    if embedding in shapes and None not in expected and [*shapes[embedding]] != expected:
        raise CheckpointError(
            f"Tensor {embedding} in {folder} has shape {[*shapes[embedding]]}; expected "
            f"{expected}, vocab_size and hidden_size of its config.json. {FETCH_BOTH}"
        )

    expected_layers = config.get("num_hidden_layers")
    has_norm_before = "layers.{}.attention_norm" in names
    norm = "attention_norm" if has_norm_before else "attention_post_norm"
    norms = (checkpoint_name(f"layers.{i}.{norm}.weight", names) for i in count())
    num_layers = sum(1 for _ in takewhile(shapes.__contains__, norms))
    if expected_layers is not None and num_layers < expected_layers:
        raise CheckpointError(
            f"The weights in {folder} have {num_layers} whole layers; expected {expected_layers}, "
            f"num_hidden_layers of its config.json. {FETCH_BOTH}"
        )
