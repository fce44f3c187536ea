"""What a start knows of a model, by a process of its own."""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.model.model_shapes import SHAPES
from raydix.errors import CheckpointError, ConfigError, EngineDead
from raydix.runtime.actors.bootstrap import checked_model
from raydix.runtime.actors.bootstrap.checked_model import check_apart, check_here
from raydix.runtime.actors.bootstrap.engine_sizes import EngineSizes
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.config.loading import load_config
from raydix.runtime.model.checkpoint.checkpoint_config import read_checkpoint_config
from raydix.runtime.model.families.table import Family
from tests.checkpoints import make_checkpoint


def config_of(folder: Path, **sections: object) -> EngineConfig:
    return load_config({"model": {"path": str(folder)}, "cache": {"l2": None}, **sections})


def test_another_process_finds_what_this_one_does(tmp_path: Path) -> None:
    config = config_of(make_checkpoint(tmp_path, Family.QWEN3_MOE, seed=0))

    apart, here = check_apart(config), check_here(config)

    assert apart.sizes == here.sizes
    assert pickle.loads(apart.checkpoint) == pickle.loads(here.checkpoint)


READ_ALL = """
import pickle, sys
from raydix.runtime.model.checkpoint.checkpoint_config import read_checkpoint_config
from raydix.runtime.model.checkpoint.late_import import hidden
with hidden("torch"):
    read = [read_checkpoint_config(folder) for folder in sys.argv[1:]]
assert "torch" not in sys.modules
sys.stdout.buffer.write(pickle.dumps(read))
"""


def test_the_config_of_every_family_is_the_same_without_torch(tmp_path: Path) -> None:
    """The other process reads it, as transformers would import all its models otherwise."""
    folders = [make_checkpoint(tmp_path / each.name, each, seed=0) for each in Family]

    done = subprocess.run(
        [sys.executable, "-c", READ_ALL, *map(str, folders)], capture_output=True, check=True
    )

    assert pickle.loads(done.stdout) == [read_checkpoint_config(each) for each in folders]


def test_errors_of_the_other_process_are_raised_here(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match="model_type None"):
        check_apart(config_of(tmp_path))

    make_checkpoint(tmp_path, Family.LLAMA, seed=0)
    with pytest.raises(ConfigError, match=r"tp"):
        check_apart(config_of(tmp_path, parallel={"tp": 3}))


def test_weights_of_other_shapes_are_told_before_any_rank_reads_them(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, Family.LLAMA, seed=0, intermediate_size=64)
    weights = (tmp_path / "model.safetensors").read_bytes()
    make_checkpoint(tmp_path, Family.LLAMA, seed=0, intermediate_size=96)
    (tmp_path / "model.safetensors").write_bytes(weights)

    with pytest.raises(CheckpointError, match=r"shape \[48, 64\]; .* asks for \[48, 96\]"):
        check_apart(config_of(tmp_path))


def test_a_process_that_ends_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(checked_model.sys, "executable", "/bin/false")
    with pytest.raises(EngineDead, match="ended with exit code 1"):
        check_apart(config_of(tmp_path))


def test_who_is_left_behind_says_nothing() -> None:
    """Its parent may end, say because there is no such cluster, before it has imported all."""
    code = f"from {checked_model.__name__} import answer; answer(0)"

    done = subprocess.run([sys.executable, "-c", code], input=b"", capture_output=True, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_ctrl_c_of_a_terminal_is_not_for_the_other_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A terminal sends it to a whole process group; imports would tell of it by a traceback."""
    program, group = tmp_path / "python", tmp_path / "group"
    program.write_text(f"#!/bin/sh\ncut -d ' ' -f 5 /proc/$$/stat > {group}\nexit 1\n")
    program.chmod(0o700)
    monkeypatch.setattr(checked_model.sys, "executable", str(program))

    with pytest.raises(EngineDead):
        check_apart(config_of(tmp_path))

    assert int(group.read_text()) != os.getpgid(0)


def test_whoever_has_no_torch_checks_a_model_without_importing_it(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, Family.LLAMA, seed=0)
    code = (
        "import json, sys; from raydix.runtime.config.loading import load_config; "
        "from raydix.runtime.actors.bootstrap.checked_model import check_model; "
        "config = load_config({'model': {'path': sys.argv[1]}, 'cache': {'l2': None}}); "
        "checked = check_model(config); "
        "print(json.dumps([checked.sizes.needs.weight_bytes, 'torch' in sys.modules]))"
    )

    done = subprocess.run(
        [sys.executable, "-c", code, folder], capture_output=True, text=True, check=True
    )

    assert json.loads(done.stdout) == [
        check_here(config_of(folder)).sizes.needs.weight_bytes,
        False,
    ]


def test_a_start_without_a_gpu_knows_what_experts_take_on_each_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    shared = {"parallel": {"dp": 2, "ep": 2}}

    def sizes_of(shape: str, **quantization: str) -> EngineSizes:
        (tmp_path / "config.json").write_text(json.dumps(SHAPES[shape]))
        model = {"path": str(tmp_path), "device": "cuda", "load_format": "dummy", **quantization}
        return check_here(config_of(tmp_path, **shared, model=model)).sizes

    sizes = sizes_of("moe_l12_fp8")
    assert sizes.kept_store_bytes is not None
    assert 0.5 <= sizes.kept_store_bytes / sizes.expert_store_bytes < 0.52
    restored = sizes_of("moe_l12_fp8", quantization="restore")
    assert restored.kept_store_bytes == restored.expert_store_bytes
    assert sizes_of("moe_l12").kept_store_bytes is None
