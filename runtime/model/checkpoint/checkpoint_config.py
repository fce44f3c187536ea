"""What the JSON files of a checkpoint say about the model, checked against what there is."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeGuard

from raydix.errors import CheckpointError, ConfigError
from raydix.kernels.int4.form import KERNEL_GROUP
from raydix.runtime.config.policies import QuantizationWay
from raydix.runtime.model.checkpoint.hub import require_folder
from raydix.runtime.model.checkpoint.json_file import read_json
from raydix.runtime.model.checkpoint.late_import import import_late
from raydix.runtime.model.checkpoint.native_weights import kept_forms, with_scaled_parts
from raydix.runtime.model.checkpoint.quantization_config import find_quantisation
from raydix.runtime.model.families.refused import NOT_COMPUTED
from raydix.runtime.model.families.table import Family
from raydix.runtime.model.formats.definition import NATIVE, RESTORE, Quantisation
from raydix.runtime.model.spec.rope_spec import REMEDY, LongRope, longest_context, positive
from raydix.runtime.model.spec.spec import AttentionSpec, LayerSpec, ModelSpec, ropes_of

_MOST_LAYERS = 10_000
_SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "max_position_embeddings",
    "head_dim",
    "global_head_dim",
    "num_global_key_value_heads",
    "num_experts_per_tok",
    "top_k_experts",
    "num_local_experts",
    "moe_intermediate_size",
    "decoder_sparse_step",
    "q_lora_rank",
    "kv_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "v_head_dim",
    "n_routed_experts",
    "n_shared_experts",
    "n_group",
    "topk_group",
)
"""Fields that, where there are any, hold whole numbers from 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointConfig:
    """A supported model: what it computes, and what serving it has to know besides."""

    family: Family
    quantisation: Quantisation
    spec: ModelSpec
    max_position_embeddings: int
    """The longest context, that to which YaRN extends it."""
    eos_token_ids: tuple[int, ...]

    def served(
        self, way: QuantizationWay, device: str, capability: tuple[int, int] | None
    ) -> "CheckpointConfig":
        """The same, of which the spec says what stays as it is stored on a device.

        For the arguments, and what is raised, see `kept_forms`. Raises ConfigError, too, if
        nothing can stay so, though all should.
        """
        may_stay, quantisation = kept_forms(way, device, capability), self.quantisation
        # What another GPU would keep does not count.
        layers = tuple(replace(layer, scaled=()) for layer in self.spec.layers)
        spec = replace(self.spec, layers=layers)
        if may_stay is not None and quantisation.config is not None:
            spec = with_scaled_parts(spec, self.family.value, quantisation.layouts, may_stay)
        stay = any(layer.scaled for layer in spec.layers)
        if way is QuantizationWay.NATIVE and not stay:
            raise ConfigError(
                f"model.quantization is native, but of {self.quantisation.description} no weight "
                f"can stay as it is stored on {device}; expected float8 with a scale per block of "
                "128 x 128, per output or per matrix, or 4 bits in groups of a multiple of "
                f"{KERNEL_GROUP} inputs, which are in order. Set model.quantization to auto or "
                "restore."
            )
        return replace(
            self, spec=spec, quantisation=replace(quantisation, way=NATIVE if stay else RESTORE)
        )

    def up_to(self, max_model_len: int | None) -> "CheckpointConfig":
        """The same for requests of at most so many tokens; None: as many as the model knows."""
        if max_model_len is None:
            return self
        layers = tuple(_layer_up_to(layer, max_model_len) for layer in self.spec.layers)
        return replace(self, spec=replace(self.spec, layers=layers))


def read_checkpoint_config(folder: str | Path) -> CheckpointConfig:
    """Read and check the config of the checkpoint in `folder`.

    Raises CheckpointError, naming the limit, for whatever the decoder does not support.
    """
    folder = Path(folder)
    family, quantisation = require_supported(folder)
    section = family.value.text_section
    whole = _read_with_transformers(folder, family)
    config = whole if section is None else getattr(whole, section)
    spec = family.value.read_spec(config)
    if section is not None:
        spec = replace(spec, tied_embeddings=_are_tied(folder, whole, section))
    return CheckpointConfig(
        family=family,
        quantisation=quantisation,
        spec=spec,
        max_position_embeddings=longest_context(
            ropes_of(spec.layers), config.max_position_embeddings
        ),
        eos_token_ids=_read_eos_token_ids(folder, whole, config),
    )


def require_supported(folder: Path) -> tuple[Family, Quantisation]:
    """What the checkpoint in `folder` is, by its config.json alone, in no time.

    Raises CheckpointError for another family or format, and for sizes that are none.
    """
    _check_folder(folder)
    raw = read_json(folder / "config.json")
    family = _find_family(raw)
    section = family.value.text_section
    quantisation = find_quantisation(folder, raw, family)
    _check_sizes(raw if section is None else raw.get(section))
    return family, quantisation


def _check_folder(folder: Path) -> None:
    require_folder(folder)
    if not any(folder.glob("*.safetensors")) and any(folder.glob("*.bin")):
        raise CheckpointError(
            f"{folder} holds .bin weights; only safetensors are supported. Convert the checkpoint."
        )


def _layer_up_to(layer: LayerSpec, max_positions: int) -> LayerSpec:
    match layer.attention:
        case AttentionSpec(rope=LongRope() as rope) as attention:
            return replace(layer, attention=replace(attention, rope=rope.up_to(max_positions)))
        case _:
            return layer


def _are_tied(folder: Path, whole: Any, section: str) -> bool:
    """Whether the embedding is the head, too, of a model whose config has sections.

    The whole file wins over the section of the language model, and that over what transformers
    takes the whole for if neither says anything.
    """
    raw = read_json(folder / "config.json")
    for said in (raw, raw[section]):
        if said.get("tie_word_embeddings") is not None:
            return bool(said["tie_word_embeddings"])
    return bool(whole.tie_word_embeddings)


def _find_family(raw: Mapping[str, Any]) -> Family:
    model_type, architectures = raw.get("model_type"), raw.get("architectures") or []
    for family in Family:
        known = family.value
        names = (known.architecture, *known.other_architectures)
        if model_type == known.model_type and architectures in ([], *([name] for name in names)):
            return family
    lacking = NOT_COMPUTED.get(str(model_type))
    if lacking is not None:
        raise CheckpointError(
            f"config.json says model_type {model_type!r}. Such models {lacking}, which Raydix does "
            f"not compute. Serve another model."
        )
    # Several families may have one architecture, as Kimi-K2 has DeepSeek-V3's.
    supported = ", ".join(dict.fromkeys(family.value.architecture for family in Family))
    raise CheckpointError(
        f"config.json says model_type {model_type!r} and architectures {architectures}; supported "
        f"are {supported}. Serve one of these; docs/models.md has them by model_type."
    )


def _read_with_transformers(folder: Path, family: Family) -> Any:
    # Imported here because it takes seconds, and only the process that reads a checkpoint needs it.
    from huggingface_hub.errors import StrictDataclassError

    # Another thread may be reading the tokenizer with it.
    auto_config = import_late("transformers").AutoConfig
    config_type = family.value.config_type
    try:
        if config_type is not None:
            raw = read_json(folder / "config.json")
            return type(auto_config.for_model(config_type)).from_dict(
                {**raw, "model_type": config_type}
            )
        return auto_config.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (
        StrictDataclassError,
        AttributeError,
        KeyError,
        OSError,
        TypeError,
        ValueError,
    ) as error:
        # What it says often has several lines.
        reason = " ".join(str(error).split()).rstrip(".")
        raise CheckpointError(f"{folder}/config.json is not valid: {reason}. {REMEDY}") from error


def _check_sizes(text: object) -> None:
    """Refuse what transformers would stumble over in the language model's section.

    It would not say where.
    """
    if not isinstance(text, Mapping):
        raise CheckpointError(
            f"The config of the language model is {text!r}; expected an object. {REMEDY}"
        )
    for name in _SIZES:
        if text.get(name) is not None:
            _check_size(name, text[name])

    for section in ("rope_scaling", "rope_parameters"):
        parameters = text.get(section)
        if isinstance(parameters, dict) and "original_max_position_embeddings" in parameters:
            positive(parameters, "original_max_position_embeddings")


def _check_size(name: str, size: object) -> None:
    if not _is_whole(size) or size < 1:
        raise CheckpointError(f"{name} is {size!r}; expected a whole number from 1. {REMEDY}")
    # More layers than any model has would be described one by one, for hours.
    if name == "num_hidden_layers" and size > _MOST_LAYERS:
        raise CheckpointError(f"{name} is {size}; expected at most {_MOST_LAYERS:,}. {REMEDY}")


def _read_eos_token_ids(folder: Path, whole: Any, config: Any) -> tuple[int, ...]:
    """Ids of generation_config.json, which wins over config.json as in transformers and vLLM.

    In config.json the whole wins over `config`, the section of the language model.
    """
    path = folder / "generation_config.json"
    eos = read_json(path).get("eos_token_id") if path.exists() else None
    if eos is None:
        eos = getattr(whole, "eos_token_id", None)
    if eos is None:
        eos = getattr(config, "eos_token_id", None)
    if eos is None:
        return ()

    ids = tuple(eos) if isinstance(eos, list | tuple) else (eos,)
    for each in ids:
        if not _is_whole(each) or not 0 <= each < config.vocab_size:
            raise CheckpointError(
                f"eos_token_id is {eos!r}; expected ids from 0 to {config.vocab_size - 1}, those "
                f"of the vocabulary. Correct generation_config.json, or config.json if the first "
                f"does not name it."
            )
    return ids


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)
