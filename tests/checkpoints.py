"""Small random checkpoints of every family, and what transformers generates from them."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    PreTrainedConfig,
)

from raydix.runtime.model.checkpoint.checkpoint_config import require_supported
from raydix.runtime.model.families.table import Family
from tests.checkpoint_configs import COMMON, CONFIGS, PER_FAMILY

STATEFUL = (
    Family.QWEN3_5,
    Family.QWEN3_5_TEXT,
    Family.QWEN3_5_MOE,
    Family.QWEN3_5_MOE_TEXT,
    Family.QWEN3_NEXT,
)
"""Some of their layers keep a state of all tokens."""
_OFFSET_NORMS = (
    Family.GEMMA2,
    Family.GEMMA3,
    Family.GEMMA3_WITH_VISION,
    *STATEFUL,
)
"""Their norms have weights around zero, the others' around one."""
_NEVER_OFFSET = "linear_attn.norm.weight"
MIN_TOP2_GAP = 1e-3
"""Below this difference of the reference's two largest logits, rounding may choose either token."""
LOGITS_TOLERANCE = 3e-5
"""Largest accepted difference of logits, relative to the largest absolute logit."""


def make_checkpoint(
    folder: Path, family: Family, *, seed: int, max_shard_size: str = "50GB", **overrides: Any
) -> Path:
    """Save a random float32 model without EOS. Returns `folder`.

    Weights are large (0.3), so that a wrong cached page changes tokens. `overrides` are fields of
    the family's config. Biases and norm weights are random, too.
    """
    torch.manual_seed(seed)
    config = CONFIGS[family](**{**COMMON, **PER_FAMILY[family], **overrides})
    model = _model_class(config).from_config(config, dtype=torch.float32)

    with torch.no_grad():
        for name, parameter in (*model.named_parameters(), *model.named_buffers()):
            if re.search(r"norm(_\d)?\.weight$", name):
                is_offset = family in _OFFSET_NORMS and not name.endswith(_NEVER_OFFSET)
                centre = 0.0 if is_offset else 1.0
                parameter.uniform_(centre - 0.3, centre + 0.3)
            elif name.endswith("A_log"):
                # States that forget slowly: a wrong one changes tokens for long.
                parameter.uniform_(-6.0, -1.0)
            elif name.endswith("bias"):
                parameter.normal_(std=0.3)
            elif name.endswith(("layer_scalar", "router.scale", "per_expert_scale")):
                parameter.uniform_(0.5, 1.5)
    model.save_pretrained(folder, max_shard_size=max_shard_size)
    if family is Family.KIMI_K25:
        _name_layers_as_published(folder)
    if family.value.config_type is not None:
        saved = json.loads((folder / "config.json").read_text())
        saved["model_type"] = family.value.model_type
        (folder / "config.json").write_text(json.dumps(saved))
    return folder


def _name_layers_as_published(folder: Path) -> None:
    """Undo that transformers saves layers of the language model by the name of a tower's."""
    wrong, right = ".model.blocks.", ".model.layers."
    for path in folder.glob("*.safetensors"):
        tensors = load_file(path)
        save_file({name.replace(wrong, right): each for name, each in tensors.items()}, path)
    for path in folder.glob("*.index.json"):
        path.write_text(path.read_text().replace(wrong, right))


def load_in_transformers(folder: Path) -> Any:
    """A checkpoint as a model of transformers, on the cpu."""
    family, _ = require_supported(folder)
    config_type = family.value.config_type
    if config_type is None:
        config = AutoConfig.from_pretrained(folder)
    else:
        saved = json.loads((folder / "config.json").read_text())
        config = AutoConfig.for_model(**{**saved, "model_type": config_type})
    return _model_class(config).from_pretrained(
        folder, config=config, dtype=torch.float32, attn_implementation="eager"
    )


def _model_class(config: PreTrainedConfig) -> Any:
    """What transformers makes of a whole checkpoint: for text alone, it may leave out towers."""
    has_towers = getattr(config, "vision_config", None) is not None
    return AutoModelForImageTextToText if has_towers else AutoModelForCausalLM


@torch.inference_mode()
def reference_generate(
    folder: Path, token_ids: Sequence[int], num_tokens: int
) -> tuple[list[int], torch.Tensor]:
    """Greedy output of transformers on the CPU, and its logits [num_tokens, V]."""
    model = load_in_transformers(folder)
    prompt = torch.tensor([list(token_ids)])
    output = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=num_tokens,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
    )
    return output.sequences[0, prompt.shape[1] :].tolist(), torch.cat(output.logits)


def num_decided_tokens(logits: torch.Tensor) -> int:
    """How many tokens come before the first whose two largest logits are within MIN_TOP2_GAP."""
    top2 = logits.topk(2, dim=-1).values
    undecided = torch.nonzero(top2[:, 0] - top2[:, 1] < MIN_TOP2_GAP).flatten().tolist()
    return undecided[0] if undecided else len(logits)
