"""What a checkpoint's config.json says about the model, checked against what the decoder can do."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from raydix.errors import CheckpointError
from raydix.kernels.page_codec import Codec
from raydix.runtime.cache.kv_layout import GroupKind, KvGroup, KvLayout

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


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
class DefaultRope:
    """Rotary embedding without scaling."""

    theta: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama3Rope:
    """Llama 3.1's scaling: low frequencies are divided by `factor`, high ones kept."""

    theta: float
    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_positions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class YarnRope:
    """YaRN (arXiv:2309.00071). `attention_factor` scales cos and sin."""

    theta: float
    factor: float
    attention_factor: float | None
    mscale: float | None
    mscale_all_dim: float | None
    beta_fast: float
    beta_slow: float
    original_max_positions: int
    truncate: bool


Rope = DefaultRope | Llama3Rope | YarnRope


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
        return KvLayout(page_size=page_size, dtype=dtype, dtype_bytes=DTYPE_BYTES[dtype], groups=(group,), codec=codec)

    def digest(self) -> bytes:
        """32 bytes over everything that decides what the model computes; EOS ids and lengths do not."""
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
    config = _hf_config(folder)
    _check_config(raw, config)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if head_dim % 2 or config.num_attention_heads % config.num_key_value_heads:
        raise CheckpointError(
            f"head_dim is {head_dim}, num_attention_heads {config.num_attention_heads}, num_key_value_heads "
            f"{config.num_key_value_heads}; expected an even head_dim and whole query groups per KV head."
        )
    attention_bias = bool(getattr(config, "attention_bias", False))
    rope, max_positions = _rope(config)
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
            f"{folder} is not a folder. Names on the Hugging Face Hub are not supported: download the checkpoint "
            "and give the path of its folder."
        )
    if not any(folder.glob("*.safetensors")) and any(folder.glob("*.bin")):
        raise CheckpointError(f"{folder} holds .bin weights; only safetensors are supported. Convert the checkpoint.")


def _family(raw: Mapping[str, Any]) -> Family:
    supported = ", ".join(_ARCHITECTURES.values())
    architectures = raw.get("architectures") or []
    for family, architecture in _ARCHITECTURES.items():
        if raw.get("model_type") == family.value and architectures in ([], [architecture]):
            return family
    raise CheckpointError(
        f"config.json says model_type {raw.get('model_type')!r} and architectures {architectures}; supported are "
        f"{supported}."
    )


def _hf_config(folder: Path) -> Any:
    # Imported here because it takes seconds, and only the process that reads a checkpoint needs it.
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (StrictDataclassError, AttributeError, KeyError, OSError, TypeError, ValueError) as error:
        raise CheckpointError(f"{folder}/config.json is not valid: {error}") from error


def _check_config(raw: Mapping[str, Any], config: Any) -> None:
    if raw.get("quantization_config") is not None:
        method = raw["quantization_config"].get("quant_method")
        raise CheckpointError(f"The checkpoint is quantised ({method}); only unquantised weights are supported.")
    if config.hidden_act != "silu":
        raise CheckpointError(f"hidden_act is {config.hidden_act!r}; only 'silu' is supported.")
    window = getattr(config, "sliding_window", None)
    # Qwen2 and Qwen3 say per layer whether it uses the window; in Mixtral every layer does.
    layer_types = set(getattr(config, "layer_types", None) or ["full_attention"])
    is_windowed = layer_types != {"full_attention"} or not hasattr(config, "layer_types")
    if window is not None and is_windowed and window < config.max_position_embeddings:
        raise CheckpointError(f"The model uses a sliding window of {window} tokens; only full attention is supported.")


def _rope(config: Any) -> tuple[Rope, int]:
    """The rotary embedding and the longest context that it serves."""
    parameters = config.rope_parameters
    if parameters.get("partial_rotary_factor", 1.0) != 1.0:
        raise CheckpointError(f"partial_rotary_factor is {parameters['partial_rotary_factor']}; only 1.0 is supported.")
    theta = float(parameters["rope_theta"])
    match parameters["rope_type"]:
        case "default":
            return DefaultRope(theta=theta), config.max_position_embeddings
        case "llama3":
            llama3 = Llama3Rope(
                theta=theta,
                factor=float(parameters["factor"]),
                low_freq_factor=float(parameters["low_freq_factor"]),
                high_freq_factor=float(parameters["high_freq_factor"]),
                original_max_positions=int(parameters["original_max_position_embeddings"]),
            )
            return llama3, config.max_position_embeddings
        case "yarn":
            yarn = _yarn(theta, parameters, config.max_position_embeddings)
            # Configs often keep the length before scaling in max_position_embeddings.
            scaled = int(yarn.factor * yarn.original_max_positions)
            return yarn, max(config.max_position_embeddings, scaled)
        case other:
            raise CheckpointError(f"rope_type is {other!r}; supported are 'default', 'llama3' and 'yarn'.")


def _yarn(theta: float, parameters: Mapping[str, Any], max_positions: int) -> YarnRope:
    original = int(parameters["original_max_position_embeddings"])
    factor = parameters.get("factor")
    return YarnRope(
        theta=theta,
        factor=float(factor) if factor is not None else max_positions / original,
        attention_factor=parameters.get("attention_factor"),
        mscale=parameters.get("mscale"),
        mscale_all_dim=parameters.get("mscale_all_dim"),
        beta_fast=float(parameters.get("beta_fast") or 32),
        beta_slow=float(parameters.get("beta_slow") or 1),
        original_max_positions=original,
        truncate=bool(parameters.get("truncate", True)),
    )


def _moe(family: Family, config: Any) -> MoeSpec | None:
    match family:
        case Family.MIXTRAL:
            return MoeSpec(
                num_experts=config.num_local_experts,
                experts_per_token=config.num_experts_per_tok,
                intermediate_size=config.intermediate_size,
                norm_topk_prob=True,
                layers=tuple(range(config.num_hidden_layers)),
            )
        case Family.QWEN3_MOE:
            sparse = tuple(
                layer
                for layer in range(config.num_hidden_layers)
                if layer not in config.mlp_only_layers
                and config.num_experts > 0
                and (layer + 1) % config.decoder_sparse_step == 0
            )
            return MoeSpec(
                num_experts=config.num_experts,
                experts_per_token=config.num_experts_per_tok,
                intermediate_size=config.moe_intermediate_size,
                norm_topk_prob=config.norm_topk_prob,
                layers=sparse,
            )
        case _:
            return None


def _eos_token_ids(folder: Path, config: Any) -> tuple[int, ...]:
    """Ids of generation_config.json, which wins over config.json as in transformers and vLLM."""
    path = folder / "generation_config.json"
    eos = read_json(path).get("eos_token_id") if path.exists() else None
    if eos is None:
        eos = config.eos_token_id
    if eos is None:
        return ()
    return (eos,) if isinstance(eos, int) else tuple(eos)
