"""From a checkpoint folder to a decoder: tensor by tensor into preallocated parameters,
fingerprinted on the way.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import xxhash
from safetensors import SafetensorError, safe_open
from torch import Tensor

from raydix.errors import CheckpointError
from raydix.moe.layer import MoeLayer
from raydix.runtime.model.attention import FullAttention
from raydix.runtime.model.decoder import Decoder, DenseMlp, make_decoder
from raydix.runtime.model.spec import Family, ModelSpec, read_json, read_spec

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_FLOAT_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_MAX_NAMED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A decoder with its weights, and the digests that name its KV."""

    decoder: Decoder
    weight_fingerprint: bytes
    """32 bytes over name, shape, dtype and content of every tensor in the checkpoint; over the seed
    of random ones.
    """
    config_digest: bytes
    """`ModelSpec.digest()`."""

    @property
    def spec(self) -> ModelSpec:
        """The decoder's spec."""
        return self.decoder.spec


def load_model(folder: str | Path, *, device: torch.device, dtype: torch.dtype) -> LoadedModel:
    """Read a Hugging Face checkpoint folder. At most one tensor is held besides the model itself.

    Raises CheckpointError if it is unsupported, incomplete or corrupt.
    """
    folder = Path(folder)
    decoder = make_decoder(read_spec(folder), device=device, dtype=dtype)
    fingerprint = load_weights(decoder, folder)
    return LoadedModel(
        decoder=decoder, weight_fingerprint=fingerprint, config_digest=decoder.spec.digest()
    )


def load_weights(decoder: Decoder, folder: Path) -> bytes:
    """Fill the decoder's parameters and return the weight fingerprint."""
    targets = _targets(decoder)
    missing = set(targets)
    unexpected: list[str] = []
    described: list[tuple[str, tuple[int, ...], str, bytes]] = []
    for name, tensor in _tensors(folder):
        described.append((name, tuple(tensor.shape), str(tensor.dtype), _digest(tensor)))
        if name in targets:
            _fill(targets[name], name, tensor)
            missing.discard(name)
        elif not _is_redundant(name, decoder.spec):
            unexpected.append(name)
    if missing or unexpected:
        raise CheckpointError(
            f"{folder} does not fit its config: missing tensors: {_some(missing)}; unexpected: "
            f"{_some(unexpected)}."
        )
    _check_tied(decoder, described)
    return hashlib.sha256(repr(sorted(described)).encode()).digest()


def _digest(tensor: Tensor) -> bytes:
    return xxhash.xxh3_128_digest(tensor.contiguous().flatten().view(torch.uint8).numpy().data)


def _fill(target: Tensor, name: str, tensor: Tensor) -> None:
    if tensor.dtype not in _FLOAT_DTYPES:
        raise CheckpointError(
            f"Tensor {name} is {tensor.dtype}; only unquantised float weights are supported."
        )
    if target.shape != tensor.shape:
        raise CheckpointError(
            f"Tensor {name} has shape {list(tensor.shape)}; the config asks for "
            f"{list(target.shape)}."
        )
    target.copy_(tensor)


def _is_redundant(name: str, spec: ModelSpec) -> bool:
    """Tensors that old exports carry although the config fixes them."""
    return name.endswith("rotary_emb.inv_freq") or (
        spec.tied_embeddings and name == "lm_head.weight"
    )


def _check_tied(decoder: Decoder, described: list[tuple[str, tuple[int, ...], str, bytes]]) -> None:
    digests = {name: digest for name, _, _, digest in described}
    head = digests.get("lm_head.weight")
    if (
        decoder.spec.tied_embeddings
        and head is not None
        and head != digests["model.embed_tokens.weight"]
    ):
        raise CheckpointError(
            "tie_word_embeddings is true, but lm_head.weight differs from "
            "model.embed_tokens.weight."
        )


def _some(names: set[str] | list[str]) -> str:
    listed = sorted(names)
    rest = f" and {len(listed) - _MAX_NAMED} more" if len(listed) > _MAX_NAMED else ""
    return (", ".join(listed[:_MAX_NAMED]) or "none") + rest


def _tensors(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """Every tensor of every shard, each once."""
    for path, expected in _shards(folder):
        try:
            with safe_open(path, framework="pt", device="cpu") as shard:
                names = list(shard.keys())
                if expected is not None and set(names) != expected:
                    differing = expected.symmetric_difference(names)
                    raise CheckpointError(
                        f"{path.name} and {_INDEX} disagree about {_some(differing)}."
                    )
                for name in names:
                    yield name, shard.get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{path} is missing or corrupt: {error}") from error


def _shards(folder: Path) -> list[tuple[Path, set[str] | None]]:
    """Weight files and, where an index lists them, the tensors that each must hold."""
    if not (folder / _INDEX).exists():
        if not (folder / _SINGLE).exists():
            raise CheckpointError(
                f"{folder} holds neither {_SINGLE} nor {_INDEX}; only safetensors are supported."
            )
        return [(folder / _SINGLE, None)]
    weight_map = read_json(folder / _INDEX).get("weight_map")
    if not isinstance(weight_map, dict):
        raise CheckpointError(f"{folder / _INDEX} has no weight_map.")
    by_file: dict[str, set[str]] = {}
    for name, file in weight_map.items():
        if not isinstance(file, str) or Path(file).name != file:
            raise CheckpointError(
                f"{_INDEX} says that {name} is in {file!r}; expected the name of a file of "
                f"{folder}. "
                "Correct the index, or fetch the checkpoint again."
            )
        by_file.setdefault(file, set()).add(name)
    return [(folder / file, names) for file, names in sorted(by_file.items())]


def _targets(decoder: Decoder) -> dict[str, Tensor]:
    """Where each tensor of the checkpoint goes: views of the decoder's parameters by Hugging Face
    name.
    """
    spec = decoder.spec
    targets: dict[str, Tensor] = {
        "model.embed_tokens.weight": decoder.embedding,
        "model.norm.weight": decoder.norm.weight,
    }
    if not spec.tied_embeddings:
        targets["lm_head.weight"] = decoder.head
    for index, layer in enumerate(decoder.decoder_layers()):
        prefix = f"model.layers.{index}."
        targets[prefix + "input_layernorm.weight"] = layer.attention_norm.weight
        targets[prefix + "post_attention_layernorm.weight"] = layer.mlp_norm.weight
        _add_attention(targets, prefix + "self_attn.", layer.attention)
        if isinstance(layer.mlp, MoeLayer):
            _add_moe(targets, prefix, layer.mlp, spec.family)
        else:
            _add_mlp(targets, prefix + "mlp.", layer.mlp)
    return targets


def _add_attention(targets: dict[str, Tensor], prefix: str, attention: FullAttention) -> None:
    query_rows = attention.num_heads * attention.head_dim
    kv_rows = attention.num_kv_heads * attention.head_dim
    rows = (query_rows, kv_rows, kv_rows)
    for kind, fused in (("weight", attention.qkv.weight), ("bias", attention.qkv.bias)):
        if fused is not None:
            parts = zip(("q_proj", "k_proj", "v_proj"), fused.split(rows), strict=True)
            targets.update({f"{prefix}{name}.{kind}": part for name, part in parts})
    _add_linear(targets, prefix + "o_proj", attention.output)
    if attention.q_norm is not None and attention.k_norm is not None:
        targets[prefix + "q_norm.weight"] = attention.q_norm.weight
        targets[prefix + "k_norm.weight"] = attention.k_norm.weight


def _add_linear(targets: dict[str, Tensor], name: str, layer: torch.nn.Linear) -> None:
    targets[name + ".weight"] = layer.weight
    if layer.bias is not None:
        targets[name + ".bias"] = layer.bias


def _add_mlp(targets: dict[str, Tensor], prefix: str, mlp: DenseMlp) -> None:
    for kind, fused in (("weight", mlp.gate_up.weight), ("bias", mlp.gate_up.bias)):
        if fused is not None:
            targets[f"{prefix}gate_proj.{kind}"], targets[f"{prefix}up_proj.{kind}"] = fused.chunk(
                2
            )
    _add_linear(targets, prefix + "down_proj", mlp.down)


def _add_moe(targets: dict[str, Tensor], prefix: str, moe: MoeLayer, family: Family) -> None:
    if family is Family.MIXTRAL:
        block, gate, up, down = "block_sparse_moe.", "w1", "w3", "w2"
    else:
        block, gate, up, down = "mlp.", "gate_proj", "up_proj", "down_proj"
    targets[f"{prefix}{block}gate.weight"] = moe.router.weight_EC
    for expert, (gate_up, down_weight) in enumerate(
        zip(moe.experts.gate_up_EIC, moe.experts.down_ECI, strict=True)
    ):
        name = f"{prefix}{block}experts.{expert}."
        targets[f"{name}{gate}.weight"], targets[f"{name}{up}.weight"] = gate_up.chunk(2)
        targets[f"{name}{down}.weight"] = down_weight
