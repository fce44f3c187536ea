import fcntl
from pathlib import Path
from types import SimpleNamespace
from typing import IO

import pytest

pytest.importorskip("triton")

from benchmarks.model.model_shapes import write_config
from raydix.errors import ConfigError
from raydix.kernels.compiling.artefact import compiling_into, keep_variants, write_artefact
from raydix.kernels.compiling.variants import TargetGpu, Variant
from raydix.runtime.actors.kernel_build import build_kernels, write_kernels
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.config.loading import load_config
from raydix.runtime.model.checkpoint.checkpoint_config import read_checkpoint_config
from raydix.runtime.model.steps.step_variants import identify

HOPPER = TargetGpu(capability=(9, 0), num_sms=132)


@pytest.mark.parametrize("told", ["", "9.0", "9:x", "hopper:132"])
def test_a_gpu_that_is_told_wrongly_is_refused(told: str, tmp_path: Path) -> None:
    config = load_config(
        {"model": {"path": str(tmp_path), "device": "cuda"}, "cache": {"l2": None}}
    )

    with pytest.raises(ConfigError, match="such as 9"):
        write_kernels(config, tmp_path / "out", tmp_path / "cache", told)


def test_an_artefact_of_the_same_identity_tells_the_variants_and_nothing_is_compiled(
    tmp_path: Path,
) -> None:
    folder = write_config("dense_l16", tmp_path / "model")
    config = load_config({"model": {"path": str(folder), "device": "cuda"}, "cache": {"l2": None}})
    checkpoint = read_checkpoint_config(folder)
    cache = tmp_path / "cache" / "KEY"
    cache.mkdir(parents=True)
    for name in ("_a.json", "_a.cubin"):
        (cache / name).write_text(name)
    identity = identify(config, checkpoint.spec, checkpoint.max_position_embeddings, HOPPER)
    variants = (Variant("raydix.kernels.dense.norm._rms_norm", "{}"),)
    write_artefact(tmp_path / "out", identity, variants, tmp_path / "cache")

    with compiling_into(tmp_path / "new"):
        built = build_kernels(config, checkpoint, HOPPER, tmp_path / "out")

    assert built.variants == variants
    assert built.compiled == ()
    assert built.left_aside is None
    assert (tmp_path / "new" / "KEY" / "_a.cubin").is_file()


def test_every_word_of_an_identity_counts(tmp_path: Path) -> None:
    def identity(*, gpu: TargetGpu = HOPPER, **model: object) -> dict[str, str]:
        values = {"path": str(folder), "device": "cuda", "max_model_len": 4096} | model
        config = load_config({"model": values, "cache": {"l2": None}})
        return identify(config, checkpoint.spec, checkpoint.max_position_embeddings, gpu)

    folder = write_config("dense_l16", tmp_path)
    checkpoint = read_checkpoint_config(folder)
    base = identity()

    assert identity() == base
    other_gpu = identity(gpu=TargetGpu(capability=(9, 0), num_sms=114))
    assert [name for name in base if base[name] != other_gpu[name]] == ["gpu"]
    shorter = identity(max_model_len=2048)
    assert [name for name in base if base[name] != shorter[name]] == ["sizes"]
    wider = identity(dtype="float32")
    assert [name for name in base if base[name] != wider[name]] == ["dtype"]


def test_seats_count_in_an_identity_where_ranks_share_experts(tmp_path: Path) -> None:
    folder = write_config("moe_l12", tmp_path)
    checkpoint = read_checkpoint_config(folder)

    def ranks(ep: int, **experts: object) -> str:
        config = load_config(
            {
                "model": {"path": str(folder), "device": "cuda"},
                "parallel": {"dp": 2, "ep": ep},
                "experts": experts,
                "cache": {"l2": None},
            }
        )
        told = identify(config, checkpoint.spec, checkpoint.max_position_embeddings, HOPPER)
        return told["ranks"]

    seats = ({"redundant_per_rank": 1}, {"spare_per_rank": 2}, {"transport": "fp8"})
    assert len({ranks(2), *(ranks(2, **each) for each in seats)}) == 4
    assert {ranks(1), *(ranks(1, **each) for each in seats)} == {"tp 1, ep 1"}


def test_variants_are_found_once_and_then_known_by_their_identity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int | None] = []

    def find(config: EngineConfig, *_: object) -> tuple[Variant, ...]:
        sizes.append(config.model.max_model_len)
        return ()

    monkeypatch.setattr("raydix.runtime.model.steps.step_variants.model_variants", find)
    folder = write_config("dense_l16", tmp_path / "model")

    def build(max_model_len: int) -> None:
        model = {"path": str(folder), "device": "cuda", "max_model_len": max_model_len}
        config = load_config({"model": model, "cache": {"l2": None}})
        with compiling_into(tmp_path / "cache"):
            assert build_kernels(config, read_checkpoint_config(folder), HOPPER).variants == ()

    for max_model_len in (4096, 4096, 2048, 4096):
        build(max_model_len)
    assert sizes == [4096, 2048]

    for damaged in ("[", "{}", '{"variants": []}'):
        for path in (tmp_path / "cache").glob("*.variants"):
            path.write_text(damaged)
        build(4096)
    assert sizes == [4096, 2048, 4096, 4096, 4096]

    def fail(*_: object) -> None:
        raise OSError("no space left on the device")

    monkeypatch.setattr("raydix.kernels.compiling.artefact.keep_variants", fail)
    build(1024)
    assert sizes[-1] == 1024


def test_who_waits_for_the_build_of_another_takes_its_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank would need seconds to find what whoever started the engine has found beside Ray."""
    folder = write_config("dense_l16", tmp_path / "model")
    config = load_config({"model": {"path": str(folder), "device": "cuda"}, "cache": {"l2": None}})
    checkpoint = read_checkpoint_config(folder)
    identity = identify(config, checkpoint.spec, checkpoint.max_position_embeddings, HOPPER)

    def let_the_other_end(lock: IO[str], operation: int) -> None:
        keep_variants(identity, ())
        fcntl.flock(lock, operation)

    waiting = SimpleNamespace(flock=let_the_other_end, LOCK_EX=fcntl.LOCK_EX)
    monkeypatch.setattr("raydix.kernels.compiling.processes.fcntl", waiting)
    monkeypatch.setattr(
        "raydix.runtime.model.steps.step_variants.model_variants", lambda *_: pytest.fail("found")
    )

    with compiling_into(tmp_path / "cache"):
        assert build_kernels(config, checkpoint, HOPPER).variants == ()
