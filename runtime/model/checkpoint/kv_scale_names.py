"""What checkpoints call the scales of keys and values in FP8."""

import re
from collections.abc import Mapping
from typing import NamedTuple

from raydix.runtime.model.families.weight_names import own_name

KEYS, VALUES = 0, 1
_NAME = re.compile(r"model\.layers\.(\d+)\.self_attn\.(.+)")
_SCALED: Mapping[str, tuple[int, ...]] = {
    "kv_scale": (KEYS, VALUES),
    "k_scale": (KEYS,),
    "v_scale": (VALUES,),
    "k_proj.k_scale": (KEYS,),
    "v_proj.v_scale": (VALUES,),
    "qkv_proj.k_scale": (KEYS,),
    "qkv_proj.v_scale": (VALUES,),
    "k_proj.output_scale": (KEYS,),
    "v_proj.output_scale": (VALUES,),
}


class KvScaleName(NamedTuple):
    """The layer of a scale, and what it is a scale of."""

    layer: int
    scaled: tuple[int, ...]
    """KEYS, VALUES or both."""


def kv_scale_name(stored: str) -> KvScaleName | None:
    """Tell by a tensor's name in a checkpoint what it is a scale of; None: it is no such scale."""
    match = _NAME.fullmatch(own_name(stored))
    scaled = None if match is None else _SCALED.get(match[2])
    return None if match is None or scaled is None else KvScaleName(int(match[1]), scaled)
