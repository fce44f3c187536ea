"""What a checkpoint's config.json says about the model, checked against what the decoder can do."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeGuard

from raydix.errors import CheckpointError
from raydix.kernels.page_codec import Codec
from raydix.runtime.config.kv_layout import GroupKind, KvGroup, KvLayout
from raydix.runtime.model.rope_spec import REMEDY, Rope, positive, read_rope

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}

_SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "max_position_embeddings",
    "head_dim",
    "num_experts_per_tok",
    "num_local_experts",
    "moe_intermediate_size",
    "decoder_sparse_step",
)


class Family(StrEnum):
    """Supported architectures, by the `model_type` of config.json."""

    LLAMA = "llama"
    QWEN2 = "qwen2"
    QWEN3 = "qwen3"
    QWEN3_MOE = "qwen3_moe"
    MIXTRAL = "mixtral"


_ARCHITECTURES = {
    Family.LLAMA: "LlamaForCausalLM",
    Family.QWEN2: "Qwen2ForCausalLM",
    Family.QWEN3: "Qwen3ForCausalLM",
    Family.QWEN3_MOE: "Qwen3MoeForCausalLM",
    Family.MIXTRAL: "MixtralForCausalLM",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeSpec:
    """The sparse layers. `layers` are the indices of those that have experts."""

    num_experts: int
    experts_per_token: int
    intermediate_size: int
    norm_topk_prob: bool
    layers: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """One decoder-only model: all that fixes its parameters and arithmetic."""

    family: Family
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope: Rope
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    tied_embeddings: bool
    moe: MoeSpec | None
    max_position_embeddings: int
    eos_token_ids: tuple[int, ...]
    dtype: str
    """The dtype that the checkpoint names; float32 if it names none."""

    def kv_layout(self, page_size: int, dtype: str, codec: Codec = Codec.NONE) -> KvLayout:
        """Shape of cached pages: one full-attention group that holds every layer.

        Raises ConfigError if the codec cannot encode them.
        """
        group = KvGroup(
            kind=GroupKind.FULL,
            layers=tuple(range(self.num_layers)),
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
        )
        return KvLayout(
            page_size=page_size,
            dtype=dtype,
            dtype_bytes=DTYPE_BYTES[dtype],
            groups=(group,),
            codec=codec,
        )

    def digest(self) -> bytes:
        """32 bytes over everything that decides what the model computes; EOS ids and lengths do
        not.
        """
        fields = asdict(self)
        for name in ("eos_token_ids", "max_position_embeddings", "dtype"):
            del fields[name]
        fields["rope_kind"] = type(self.rope).__name__
        return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).digest()


def read_spec(folder: str | Path) -> ModelSpec:
    """Read and check the config of the checkpoint in `folder`.

    Raises CheckpointError, naming the limit, for whatever the decoder does not support.
    """
    folder = Path(folder)
    _check_folder(folder)
    raw = read_json(folder / "config.json")
    family = _family(raw)
    _check_raw(raw)
    config = _hf_config(folder)
    if config.hidden_act != "silu":
        raise CheckpointError(f"hidden_act is {config.hidden_act!r}; only 'silu' is supported.")
    rope, max_positions = read_rope(config)
    _check_window(config, max_positions)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if (
        not _is_whole(head_dim)
        or head_dim < 2
        or head_dim % 2
        or config.num_attention_heads % config.num_key_value_heads
    ):
        raise CheckpointError(
            f"head_dim is {head_dim}, num_attention_heads {config.num_attention_heads}, "
            f"num_key_value_heads "
            f"{config.num_key_value_heads}; expected an even head_dim and whole query groups per "
            f"KV head. {REMEDY}"
        )
    attention_bias = bool(getattr(config, "attention_bias", False))
    return ModelSpec(
        family=family,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_layers=config.num_hidden_layers,
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=head_dim,
        rms_norm_eps=config.rms_norm_eps,
        rope=rope,
        qkv_bias=attention_bias or family is Family.QWEN2,
        output_bias=attention_bias and family is not Family.QWEN2,
        mlp_bias=bool(getattr(config, "mlp_bias", False)),
        qk_norm=family in (Family.QWEN3, Family.QWEN3_MOE),
        tied_embeddings=bool(config.tie_word_embeddings),
        moe=_moe(family, config),
        max_position_embeddings=max_positions,
        eos_token_ids=_eos_token_ids(folder, config),
        dtype=str(config.dtype).removeprefix("torch.") if config.dtype is not None else "float32",
    )


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object. Raises CheckpointError if the file is missing or is not one."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} does not exist; a checkpoint folder needs it.") from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} holds a {type(value).__name__}; expected a JSON object.")
    return value


def _check_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise CheckpointError(
            f"{folder} is not a folder. Names on the Hugging Face Hub are not supported: download "
            f"the checkpoint "
            "and give the path of its folder."
        )
    if not any(folder.glob("*.safetensors")) and any(folder.glob("*.bin")):
        raise CheckpointError(
            f"{folder} holds .bin weights; only safetensors are supported. Convert the checkpoint."
        )


def _family(raw: Mapping[str, Any]) -> Family:
    supported = ", ".join(_ARCHITECTURES.values())
    architectures = raw.get("architectures") or []
    for family, architecture in _ARCHITECTURES.items():
        if raw.get("model_type") == family.value and architectures in ([], [architecture]):
            return family
    raise CheckpointError(
        f"config.json says model_type {raw.get('model_type')!r} and architectures "
        f"{architectures}; supported are "
        f"{supported}."
    )


def _hf_config(folder: Path) -> Any:
    # Imported here because it takes seconds, and only the process that reads a checkpoint needs it.
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (
        StrictDataclassError,
        AttributeError,
        KeyError,
        OSError,
        TypeError,
        ValueError,
    ) as error:
        raise CheckpointError(f"{folder}/config.json is not valid: {error}") from error


def _check_raw(raw: Mapping[str, Any]) -> None:
    """What transformers would stumble over without a word of where."""
    quantization = raw.get("quantization_config")
    if quantization is not None:
        method = (
            quantization.get("quant_method") if isinstance(quantization, dict) else quantization
        )
        raise CheckpointError(
            f"The checkpoint is quantised ({method}); only unquantised weights are supported."
        )
    for name in _SIZES:
        if raw.get(name) is not None:
            _check_size(name, raw[name])
    for section in ("rope_scaling", "rope_parameters"):
        parameters = raw.get(section)
        if isinstance(parameters, dict) and "original_max_position_embeddings" in parameters:
            positive(parameters, "original_max_position_embeddings")


def _check_size(name: str, size: object) -> None:
    if not _is_whole(size) or size < 1:
        raise CheckpointError(f"{name} is {size!r}; expected a whole number from 1. {REMEDY}")


def _check_window(config: Any, max_positions: int) -> None:
    """`max_positions`: the longest context, that to which YaRN extends it."""
    window = getattr(config, "sliding_window", None)
    # Qwen2 and Qwen3 say per layer whether it uses the window; in Mixtral every layer does.
    layer_types = set(getattr(config, "layer_types", None) or ["full_attention"])
    is_windowed = layer_types != {"full_attention"} or not hasattr(config, "layer_types")
    if window is not None and is_windowed and window < max_positions:
        raise CheckpointError(
            f"The model uses a sliding window of {window} tokens, and its context is "
            f"{max_positions}; only full "
            "attention is supported. Use a model without a window."
        )


def _moe(family: Family, config: Any) -> MoeSpec | None:
    match family:
        case Family.MIXTRAL:
            _check_choice(config.num_experts_per_tok, config.num_local_experts)
            return MoeSpec(
                num_experts=config.num_local_experts,
                experts_per_token=config.num_experts_per_tok,
                intermediate_size=config.intermediate_size,
                norm_topk_prob=True,
                layers=tuple(range(config.num_hidden_layers)),
            )
        case Family.QWEN3_MOE:
            dense = config.mlp_only_layers or ()
            sparse = tuple(
                layer
                for layer in range(config.num_hidden_layers)
                if layer not in dense
                and config.num_experts > 0
                and (layer + 1) % config.decoder_sparse_step == 0
            )
            if sparse:
                _check_choice(config.num_experts_per_tok, config.num_experts)
            return MoeSpec(
                num_experts=config.num_experts,
                experts_per_token=config.num_experts_per_tok,
                intermediate_size=config.moe_intermediate_size,
                norm_topk_prob=config.norm_topk_prob,
                layers=sparse,
            )
        case _:
            return None


def _check_choice(experts_per_token: int, num_experts: int) -> None:
    if experts_per_token > num_experts:
        raise CheckpointError(
            f"num_experts_per_tok is {experts_per_token}; expected at most the number of experts, "
            f"{num_experts}. "
            f"{REMEDY}"
        )


def _eos_token_ids(folder: Path, config: Any) -> tuple[int, ...]:
    """Ids of generation_config.json, which wins over config.json as in transformers and vLLM."""
    path = folder / "generation_config.json"
    eos = read_json(path).get("eos_token_id") if path.exists() else None
    if eos is None:
        eos = config.eos_token_id
    if eos is None:
        return ()
    ids = tuple(eos) if isinstance(eos, list | tuple) else (eos,)
    for each in ids:
        if not _is_whole(each) or not 0 <= each < config.vocab_size:
            raise CheckpointError(
                f"eos_token_id is {eos!r}; expected ids from 0 to {config.vocab_size - 1}, those "
                f"of the vocabulary. "
                "Correct generation_config.json, or config.json if the first does not name it."
            )
    return ids


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)
