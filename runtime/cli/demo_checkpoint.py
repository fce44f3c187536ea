"""A small Qwen3-MoE checkpoint with random weights, in the files that transformers would save."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

HIDDEN_SIZE = 64
NUM_LAYERS = 4
NUM_HEADS = 4
NUM_KV_HEADS = 2
HEAD_DIM = 16
NUM_EXPERTS = 8
NUM_EXPERTS_PER_TOKEN = 2
EXPERT_SIZE = 32
MAX_POSITIONS = 4096
INITIALIZER_RANGE = 0.3
"""Wide enough for a wrong page to change tokens; with the customary 0.02 it can go unnoticed."""

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_demo_checkpoint(folder: Path, *, seed: int = 0) -> None:
    """Write config, tokenizer and float32 weights into `folder`, which is created if absent.

    The same seed gives the same weights.
    """
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = _vocabulary()
    end_id = vocabulary["<|im_end|>"]

    _write_tokenizer(folder, vocabulary)
    write_json(folder / "config.json", _config(len(vocabulary), end_id))
    write_json(folder / "generation_config.json", {"eos_token_id": end_id, "do_sample": False})
    rng = np.random.default_rng(seed)
    tensors = dict(_tensors(len(vocabulary), rng))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def _vocabulary() -> dict[str, int]:
    """One token per byte, then the special ones."""
    symbols = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *SPECIAL_TOKENS]
    return {symbol: index for index, symbol in enumerate(symbols)}


def _write_tokenizer(folder: Path, vocabulary: dict[str, int]) -> None:
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    write_tokenizer(
        folder,
        tokenizer,
        end="<|im_end|>",
        padding="<|endoftext|>",
        chat_template=CHAT_TEMPLATE,
        max_tokens=MAX_POSITIONS,
    )


def write_tokenizer(
    folder: Path,
    tokenizer: Tokenizer,
    *,
    end: str,
    padding: str,
    chat_template: str,
    max_tokens: int,
) -> None:
    """Write the files by which transformers loads this tokenizer."""
    tokenizer.save(str(folder / "tokenizer.json"))
    write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": end,
            "pad_token": padding,
            "chat_template": chat_template,
            "model_max_length": max_tokens,
            "clean_up_tokenization_spaces": False,
        },
    )


def _config(vocab_size: int, end_id: int) -> dict[str, object]:
    return {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "dtype": "float32",
        "vocab_size": vocab_size,
        "hidden_size": HIDDEN_SIZE,
        "intermediate_size": 2 * HIDDEN_SIZE,
        "num_hidden_layers": NUM_LAYERS,
        "num_attention_heads": NUM_HEADS,
        "num_key_value_heads": NUM_KV_HEADS,
        "head_dim": HEAD_DIM,
        "num_experts": NUM_EXPERTS,
        "num_experts_per_tok": NUM_EXPERTS_PER_TOKEN,
        "moe_intermediate_size": EXPERT_SIZE,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "norm_topk_prob": True,
        "hidden_act": "silu",
        "attention_bias": False,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": MAX_POSITIONS,
        "initializer_range": INITIALIZER_RANGE,
        "tie_word_embeddings": False,
        "use_sliding_window": False,
        "bos_token_id": None,
        "eos_token_id": end_id,
    }


def _tensors(
    vocab_size: int, rng: np.random.Generator
) -> Iterator[tuple[str, NDArray[np.float32]]]:
    def matrix(rows: int, columns: int) -> NDArray[np.float32]:
        return (INITIALIZER_RANGE * rng.standard_normal((rows, columns))).astype(np.float32)

    def ones(size: int) -> NDArray[np.float32]:
        return np.ones(size, np.float32)

    yield "model.embed_tokens.weight", matrix(vocab_size, HIDDEN_SIZE)

    for layer in range(NUM_LAYERS):
        prefix = f"model.layers.{layer}"
        for name, heads in (("q", NUM_HEADS), ("k", NUM_KV_HEADS), ("v", NUM_KV_HEADS)):
            yield f"{prefix}.self_attn.{name}_proj.weight", matrix(heads * HEAD_DIM, HIDDEN_SIZE)
        yield f"{prefix}.self_attn.o_proj.weight", matrix(HIDDEN_SIZE, NUM_HEADS * HEAD_DIM)
        for name in ("q_norm", "k_norm"):
            yield f"{prefix}.self_attn.{name}.weight", ones(HEAD_DIM)
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield f"{prefix}.{name}.weight", ones(HIDDEN_SIZE)

        yield f"{prefix}.mlp.gate.weight", matrix(NUM_EXPERTS, HIDDEN_SIZE)
        for expert in range(NUM_EXPERTS):
            names = f"{prefix}.mlp.experts.{expert}"
            for name in ("gate_proj", "up_proj"):
                yield f"{names}.{name}.weight", matrix(EXPERT_SIZE, HIDDEN_SIZE)
            yield f"{names}.down_proj.weight", matrix(HIDDEN_SIZE, EXPERT_SIZE)

    yield "model.norm.weight", ones(HIDDEN_SIZE)
    yield "lm_head.weight", matrix(vocab_size, HIDDEN_SIZE)


def write_json(path: Path, values: dict[str, object]) -> None:
    """Write values as JSON for people."""
    path.write_text(json.dumps(values, indent=2) + "\n")
