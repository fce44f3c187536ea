"""Scales of keys and values in FP8 that a checkpoint has. Without any all of them are one.

Legend: H KV heads of the whole model; 2, keys and values.
"""

import hashlib
import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from raydix.errors import CheckpointError
from raydix.runtime.model.checkpoint.checkpoint import LoadedModel
from raydix.runtime.model.checkpoint.kv_scale_names import kv_scale_name
from raydix.runtime.model.checkpoint.shard_reader import ReadTensor, read_tensors
from raydix.runtime.model.checkpoint.weight_files import list_weights
from raydix.runtime.model.decoder.attention import Attention
from raydix.runtime.model.decoder.decoder import Decoder
from raydix.runtime.model.decoder.decoder_layer import DecoderLayer
from raydix.runtime.model.formats.stored_tensor import FETCH_BOTH
from raydix.runtime.model.spec.kv_groups import source_layer

logger = logging.getLogger(__name__)


def load_kv_scales(loaded: LoadedModel, folder: str | Path) -> LoadedModel:
    """Give each layer the scales that the checkpoint has for it, whole or one for all heads.

    The fingerprint of what is returned covers them: other scales are other pages. Raises
    CheckpointError if one is no positive number, or as many as there are heads.
    """
    stored = [each for each in list_weights(Path(folder)) if kv_scale_name(each.name) is not None]
    if not stored:
        logger.info("keys and values in FP8: the checkpoint has no scales, all are 1")
        return loaded

    read = sorted(read_tensors(stored, torch.device("cpu")), key=lambda each: each.stored.name)
    num_layers = _fill_layers(loaded.decoder, _by_layer(loaded.decoder, read))
    logger.info("keys and values in FP8: scales of the checkpoint in %d layers", num_layers)

    described = [(each.stored.name, each.stored.shape, each.digest) for each in read]
    digest = hashlib.sha256(loaded.weight_fingerprint + repr(described).encode()).digest()
    return replace(loaded, weight_fingerprint=digest)


def _by_layer(decoder: Decoder, read: Iterable[ReadTensor]) -> Mapping[int, Tensor]:
    """The scales [2, H] of each layer that has some, float32; those that are not stored are one."""
    scales: dict[int, Tensor] = {}
    attentions = {
        index: layer.attention
        for index, layer in enumerate(decoder.layers)
        if isinstance(layer, DecoderLayer) and isinstance(layer.attention, Attention)
    }
    for each in read:
        name = kv_scale_name(each.stored.name)
        assert name is not None, "only scales are read"
        if name.layer not in attentions:
            continue
        num_heads = attentions[name.layer].spec.num_kv_heads
        scales_H = _checked(each, num_heads).expand(num_heads)
        scales_2H = scales.setdefault(name.layer, torch.ones(2, num_heads))
        for scaled in name.scaled:
            scales_2H[scaled] = scales_H
    return scales


def _checked(read: ReadTensor, num_heads: int) -> Tensor:
    """One scale for all heads, or one for each."""
    tensor = read.tensor
    if not tensor.is_floating_point() or tensor.numel() not in (1, num_heads):
        raise CheckpointError(
            f"Tensor {read.stored.name} is {tensor.dtype} {list(tensor.shape)}; expected floats, "
            f"one or {num_heads}. {FETCH_BOTH}"
        )
    scales = tensor.float().flatten()
    if not bool(((scales > 0) & scales.isfinite()).all()):
        raise CheckpointError(
            f"Tensor {read.stored.name} has {scales.tolist()}; expected scales above 0. "
            f"{FETCH_BOTH}"
        )
    return scales


def _fill_layers(decoder: Decoder, scales: Mapping[int, Tensor]) -> int:
    """Fill the layers' scales, and return how many have some."""
    num_filled = 0
    for index, layer in enumerate(decoder.layers):
        # One that reads another layer's keys and values reads them by that layer's scales.
        source = source_layer(decoder.spec.layers[index])
        own = scales.get(index if source is None else source)
        if own is not None:
            assert isinstance(layer, DecoderLayer)
            assert isinstance(layer.attention, Attention), "others cache no keys and values"
            layer.attention.fill_kv_scales(own)
            num_filled += 1
    return num_filled
