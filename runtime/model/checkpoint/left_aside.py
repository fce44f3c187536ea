"""Tensors of a checkpoint that its language model does without, by their names alone."""

import re
from collections import Counter
from collections.abc import Iterable

from raydix.runtime.model.checkpoint.kv_scale_names import kv_scale_name
from raydix.runtime.model.families.definition import FamilyDefinition
from raydix.runtime.model.families.weight_names import own_name

_PARTS = {
    "vision_tower.": "images",
    "vision_model.": "images",
    "visual.": "images",
    "embed_vision.": "images",
    "vision_embedder.": "images",
    "multi_modal_projector.": "images",
    "mm_projector.": "images",
    "audio_tower.": "sounds",
    "embed_audio.": "sounds",
    "mtp.": "guesses of tokens ahead",
}
"""What names of the parts begin with that text does without, and what these are for."""


def purpose_left_aside(stored: str, family: FamilyDefinition, num_layers: int) -> str | None:
    """What a tensor is for that the language model does without; None: it may need it."""
    if kv_scale_name(stored) is not None:
        return "keys and values in FP8"
    name = own_name(stored)
    if name.endswith("rotary_emb.inv_freq"):
        return "frequencies that the config fixes"
    if family.has_prediction_layers and is_past_last(name, num_layers):
        return "guesses of tokens ahead"
    part = name.removeprefix("model.")
    return next((purpose for start, purpose in _PARTS.items() if part.startswith(start)), None)


def is_past_last(name: str, num_layers: int) -> bool:
    """Whether a tensor is of a layer that the config does not count."""
    layer = re.match(r"model\.layers\.(\d+)\.", name)
    return layer is not None and int(layer[1]) >= num_layers


def describe_left_aside(purposes: Iterable[str]) -> str:
    """How many tensors are left aside for each purpose."""
    counts = Counter(purposes)
    return ", ".join(f"{count} for {purpose}" for purpose, count in sorted(counts.items()))
