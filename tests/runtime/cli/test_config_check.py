"""What an engine would take, told without starting it."""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import zmq.auth
from safetensors.torch import load_file, save_file

from raydix.runtime.actors.pulls.carriers import NixlFacts
from raydix.runtime.cli import pull_transport
from raydix.runtime.config import storage_libraries
from raydix.runtime.model.families.table import Family
from tests.checkpoints import make_checkpoint
from tests.quantised_checkpoints import make_quantised

CUDA = ("--set", "model.device=cuda", "--set", "cache.l2.bytes_per_node=1GiB")
Run = Callable[..., int]
Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A checkpoint's config without its weights."""
    folder: Path = make_checkpoint(tmp_path_factory.mktemp("model"), Family.QWEN3, seed=3)
    for path in folder.glob("*.safetensors"):
        path.unlink()
    return str(folder)


def test_every_tier_is_told_for_people(run: Run, capsys: Capture, model: str) -> None:
    assert run("config", "check", model) == 0
    out = capsys.readouterr().out
    for words in ("L1     1,024 pages = 16,384 tokens", "weights ", "context at most ", "node "):
        assert words in out


def test_json_has_the_figures_alone(run: Run, capsys: Capture, model: str) -> None:
    assert run("config", "check", model, "--json") == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["l1_pages_per_rank"] == [1024]
    assert figures["l2_bytes_per_node"] == pytest.approx(4 * figures["l1_bytes_per_rank"], rel=0.1)
    assert figures["problems"] == []


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def lacking_a_tensor(path: Path) -> None:
    tensors = load_file(path)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, path)


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (emptied, "it has 0 bytes; expected a header and tensors"),
        (cut_short, "its header describes"),
        (lacking_a_tensor, "missing tensors: model.layers.1.mlp.up_proj.weight"),
    ],
)
def test_weights_that_are_here_and_not_whole_are_told(
    run: Run, capsys: Capture, tmp_path: Path, damage: Callable[[Path], None], told: str
) -> None:
    folder = make_checkpoint(tmp_path, Family.QWEN3, seed=3)
    assert run("config", "check", str(folder)) == 0

    damage(folder / "model.safetensors")
    assert run("config", "check", str(folder)) == 1
    assert told in capsys.readouterr().err
    assert run("config", "check", str(folder), "--set", "model.load_format=dummy") == 0


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        ((True, True, False), "nixl: the library and what it needs are here"),
        ((True, False, False), "tcp: this host has no RDMA device"),
        ((False, True, False), "tcp: the library nixl is not installed"),
        ((True, True, True), "tcp: links between nodes use TLS"),
    ],
)
def test_what_would_carry_pulls_is_told_and_why(
    run: Run,
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
    model: str,
    facts: tuple[bool, bool, bool],
    told: str,
) -> None:
    is_installed, has_rdma, is_encrypted = facts
    there = NixlFacts(is_installed=is_installed, has_rdma=has_rdma, is_encrypted=is_encrypted)
    monkeypatch.setattr(pull_transport, "nixl_facts", lambda _: there)
    pulling = ("config", "check", model, "--set", "cache.l2={bytes_per_node: 64MiB, pull: {}}")
    assert run(*pulling) == 0
    assert f"pulls  from other nodes, as of this machine, by {told}" in capsys.readouterr().out
    assert run(*pulling, "--json") == 0
    figures = json.loads(capsys.readouterr().out)
    assert f"{figures['pull_transport']}: {figures['pull_transport_why']}".startswith(told)


def test_who_does_not_pull_hears_nothing_of_it(run: Run, capsys: Capture, model: str) -> None:
    assert run("config", "check", model) == 0
    assert "pulls" not in capsys.readouterr().out
    assert run("config", "check", model, "--json") == 0
    assert json.loads(capsys.readouterr().out)["pull_transport"] is None


DEEPSEEK_V3 = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "vocab_size": 129280,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "n_group": 8,
    "topk_group": 4,
    "first_k_dense_replace": 3,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "max_position_embeddings": 163840,
    "quantization_config": {
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "quant_method": "fp8",
        "weight_block_size": [128, 128],
    },
}
DEEPSEEK_V3_WEIGHTS = 671e9
"""The published number, without the layer that guesses tokens ahead."""


def test_a_quantised_model_is_sized_as_it_is_kept_from_its_config_alone(
    run: Run, capsys: Capture, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(DEEPSEEK_V3))
    arguments = (*CUDA, "--set", "parallel.tp=8", "--gpu-memory", "400GiB", "--json")

    assert run("config", "check", str(tmp_path), *arguments) == 0

    figures = json.loads(capsys.readouterr().out)
    assert figures["weight_format"] == "fp8, a scale per block of 128 x 128 (way: restore)"
    assert figures["stored_weight_bytes"] is None
    # In bfloat16; each rank has all of what makes latents.
    assert figures["weight_bytes_per_rank"] == pytest.approx(2 * DEEPSEEK_V3_WEIGHTS / 8, rel=0.02)


def test_who_restores_what_does_not_fit_hears_of_the_smaller_way(
    run: Run, capsys: Capture, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(DEEPSEEK_V3))
    asked = ("config", "check", str(tmp_path), *CUDA, "--set", "parallel.tp=8")

    assert run(*asked, "--gpu-memory", "140GiB") == 1
    assert "set model.quantization to native" in capsys.readouterr().err
    native = ("--set", "model.quantization=native")
    assert run(*asked, "--gpu-memory", "140GiB", *native) == 0
    assert run(*asked, "--gpu-memory", "80GiB", *native) == 1
    assert "to native" not in capsys.readouterr().err


def test_gpus_that_lack_what_is_asked_for_do_not_fit(
    run: Run, capsys: Capture, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(DEEPSEEK_V3))
    asked = ("config", "check", str(tmp_path), *CUDA, "--set", "parallel.tp=8")

    assert run(*asked, "--set", "model.quantization=native") == 0
    told = capsys.readouterr().out
    assert "A100 80GB: has no model.quantization native" in told
    assert "B200: has no model.quantization native" in told
    assert "H200: fits, with " in told


def test_each_gpu_is_told_by_what_it_would_keep(run: Run, capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(DEEPSEEK_V3))
    asked = ("config", "check", str(tmp_path), *CUDA, "--set", "parallel.tp=8")

    assert run(*asked) == 0
    told = capsys.readouterr().out
    assert "(way: restore)" in told
    assert "A100 80GB: does not fit\n" in told
    assert re.search(r"H200: fits, with [\d,]+ tokens of L1 per rank \(way: native\)", told)

    assert run(*asked, "--gpu", "H200") == 0
    assert "(way: native)" in capsys.readouterr().out
    assert run(*asked, "--gpu", "A100 80GB") == 1
    assert "leaves too little for KV" in capsys.readouterr().err

    assert run(*asked, "--set", "model.dtype=float16") == 0
    assert "way: native" not in capsys.readouterr().out, "kernels are for bfloat16"


def test_gpus_without_float8_cannot_cache_it(run: Run, capsys: Capture, model: str) -> None:
    fp8 = ("--set", "cache.kv_dtype=fp8_e4m3")
    assert run("config", "check", model, *CUDA, *fp8) == 0
    told = capsys.readouterr().out
    assert "A100 80GB: has no cache.kv_dtype fp8_e4m3" in told
    assert "L4: fits, with " in told


def test_float8_that_stays_takes_half_of_the_memory(
    run: Run, capsys: Capture, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(DEEPSEEK_V3))
    native = ("--set", "model.quantization=native", "--set", "parallel.tp=8", "--json")

    assert run("config", "check", str(tmp_path), *CUDA, "--gpu-memory", "400GiB", *native) == 0

    figures = json.loads(capsys.readouterr().out)
    assert figures["weight_format"] == "fp8, a scale per block of 128 x 128 (way: native)"
    # The embedding, the head, and what makes keys and values of latents are in bfloat16.
    assert figures["weight_bytes_per_rank"] == pytest.approx(DEEPSEEK_V3_WEIGHTS / 8, rel=0.02)


def test_four_bits_that_stay_take_a_quarter_of_the_memory(
    run: Run, capsys: Capture, tmp_path: Path
) -> None:
    awq = {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm"}
    (tmp_path / "config.json").write_text(
        json.dumps({**DEEPSEEK_V3, "quantization_config": {**awq, "zero_point": True}})
    )
    native = ("--set", "model.quantization=native", "--set", "parallel.tp=8", "--json")

    assert run("config", "check", str(tmp_path), *CUDA, "--gpu-memory", "400GiB", *native) == 0

    figures = json.loads(capsys.readouterr().out)
    assert figures["weight_format"] == "awq, 4 bits in groups of 128 inputs (way: native)"
    # A group has a float32 scale and a byte for its zero point. The embedding, the head, and what
    # makes keys and values of latents are in bfloat16; each rank has all of what makes latents.
    weight_bytes = DEEPSEEK_V3_WEIGHTS * (1 / 2 + 5 / 128) / 8
    assert figures["weight_bytes_per_rank"] == pytest.approx(weight_bytes, rel=0.04)


def test_what_is_kept_and_what_is_read_are_told_apart(
    run: Run, capsys: Capture, tmp_path: Path
) -> None:
    quantised, plain = make_quantised(tmp_path, Family.QWEN3, "fp8 blocks")
    figures = {}
    for folder in (plain, quantised):
        assert run("config", "check", str(folder), "--json") == 0
        figures[folder] = json.loads(capsys.readouterr().out)
        assert run("config", "check", str(folder)) == 0
        assert f"stored as {figures[folder]['weight_format']}, " in capsys.readouterr().out

    of_plain, of_quantised = figures[plain], figures[quantised]
    assert of_plain["weight_format"] == "floats"
    assert of_quantised["weight_bytes_per_rank"] == of_plain["weight_bytes_per_rank"]
    file_bytes = (quantised / "model.safetensors").stat().st_size
    assert of_quantised["stored_weight_bytes"] == file_bytes < of_plain["stored_weight_bytes"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--set", "parallel.tp=3"], "heads cannot be divided"),
        (["--set", "parallel.dp=4096"], "4096 ranks need a CPU each"),
        (["--node-memory", "1MiB"], "of which 1MiB are free. Lower cache.l2.bytes_per_node"),
        ([*CUDA, "--gpu-memory", "256MiB"], "of 256MiB leaves too little for KV, as weights take"),
        (["--gpu-memory", "80GiB"], "model.device is cpu, where no GPU is used. Set model.device"),
        (
            [*CUDA, "--gpu-memory", "3GiB", "--set", "cache.l1.num_pages=1000000"],
            "of its GPU, which has 3GiB. Lower cache.l1.num_pages",
        ),
        (
            ["--set", "cache.l3={backend: file, path: x, max_bytes: 64}"],
            "cache.l3.max_bytes is 64, less than the",
        ),
        (
            ["--set", "cache.l2={bytes_per_node: 64}"],
            "the host arena of 64 bytes holds 0 pages of ",
        ),
        ([*CUDA, "--gpu", "H9"], "--gpu is 'H9'; expected one of L4, L40S, A100 40GB"),
        (["--gpu", "H100"], "--gpu is given, but model.device is cpu"),
        ([*CUDA, "--gpu", "H100", "--gpu-memory", "9GiB"], "both say what a GPU has"),
        (
            [*CUDA, "--gpu", "A100 80GB", "--set", "cache.kv_dtype=fp8_e4m3"],
            "The GPU has no cache.kv_dtype fp8_e4m3",
        ),
        (["--gpu-memory", "much"], "--gpu-memory is 'much'; expected bytes or a number"),
    ],
)
def test_what_does_not_fit_is_one_line_and_exit_status_1(
    run: Run, capsys: Capture, model: str, arguments: list[str], words: str
) -> None:
    assert run("config", "check", model, *arguments) == 1
    printed = capsys.readouterr().err
    assert printed.startswith("ConfigError: ")
    assert words in printed
    assert printed.count("\n") == 1


def test_for_a_gpu_that_is_not_named_each_kind_is_told(
    run: Run, capsys: Capture, model: str
) -> None:
    assert run("config", "check", model, *CUDA, "--gpu-memory", "80GiB", "--json") == 0
    with_80 = json.loads(capsys.readouterr().out)
    assert run("config", "check", model, *CUDA, "--gpu-memory", "40GiB", "--json") == 0
    with_40 = json.loads(capsys.readouterr().out)
    assert with_80["l1_pages_per_rank"][0] > 2 * with_40["l1_pages_per_rank"][0]

    assert run("config", "check", model, *CUDA) == 0
    out = capsys.readouterr().out
    assert "H200: fits, with " in out


def test_serve_can_be_asked_without_starting_anything(
    run: Run, capsys: Capture, model: str
) -> None:
    assert run("serve", model, "--dry-run") == 0
    assert "weights " in capsys.readouterr().out


def test_ports_of_options_and_keys_may_not_be_the_same(
    run: Run, capsys: Capture, model: str
) -> None:
    events = ("--set", "cache.events={port: 7000, replay_port: 7100}")
    assert run("config", "check", model, *events, "--http", "127.0.0.1:7001") == 0
    capsys.readouterr()
    assert run("config", "check", model, *events, "--http", "127.0.0.1:7100") == 1
    assert "--http takes port 7100" in capsys.readouterr().err
    assert run("config", "check", model, *events, "--listen", "127.0.0.1:7000") == 1
    assert "--listen takes port 7000" in capsys.readouterr().err


def test_keys_of_events_that_cannot_be_read_are_told(
    run: Run, capsys: Capture, model: str, tmp_path: Path
) -> None:
    curve = ("--set", f"cache.events.curve={tmp_path}")
    assert run("config", "check", model, *curve) == 1
    assert "cache.events.curve: " in capsys.readouterr().err

    (tmp_path / "clients").mkdir()
    zmq.auth.create_certificates(tmp_path, "server")
    assert run("config", "check", model, *curve) == 0
    (tmp_path / "server.key_secret").write_text("no key")
    assert run("config", "check", model, *curve) == 1
    assert "No public key found" in capsys.readouterr().err


def test_keys_of_events_are_not_looked_for_where_the_engine_will_not_run(
    run: Run, capsys: Capture, model: str
) -> None:
    elsewhere = ("--set", "cache.events.curve=/no/such/keys", "--gpu-memory", "400GiB")
    assert run("config", "check", model, *CUDA, *elsewhere) == 0
    assert "cache.events.curve is not read here" in capsys.readouterr().out


def test_a_library_that_l3_lacks_is_told_where_the_engine_will_run(
    run: Run, capsys: Capture, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage_libraries.importlib.util, "find_spec", lambda name: None)
    monkeypatch.delitem(sys.modules, "obstore", raising=False)
    l3 = ("--set", "cache.l3={backend: s3, bucket: pages}")

    assert run("config", "check", model, *l3) == 1
    told = capsys.readouterr()
    assert "its library obstore is not installed." in " ".join(told.err.split())
    assert "pip install 'raydix[s3]'" in " ".join(told.err.split())

    assert run("config", "check", model, *l3, *CUDA, "--gpu-memory", "400GiB") == 0
    assert "L3 is not asked here, nor is its library looked for" in capsys.readouterr().out
