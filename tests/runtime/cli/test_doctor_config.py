"""`raydix doctor CONFIG`: what this machine lacks for it."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from raydix.runtime.cli import doctor_config
from raydix.runtime.cli.config_check import Machine
from raydix.runtime.cli.doctor_config import examine_config
from raydix.runtime.cli.doctor_storage import BackendReport
from raydix.runtime.config.loading import load_config
from raydix.runtime.model.families.table import Family
from tests.checkpoints import make_checkpoint

CUDA = {"model": {"device": "cuda"}, "cache": {"l2": {"bytes_per_node": "1GiB"}}}
S3 = {"cache": {"l3": {"backend": "s3", "bucket": "pages"}}}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_checkpoint(tmp_path_factory.mktemp("model"), Family.QWEN3, seed=3))


def test_doctor_tells_of_the_configuration_beside_the_machine(
    run: Callable[..., int], capsys: pytest.CaptureFixture[str], model: str
) -> None:
    status = run("doctor", model, "--set", "parallel.dp=4096", "--json")
    findings = {each["subject"]: each for each in json.loads(capsys.readouterr().out)}
    assert status == 1
    assert "python" in findings
    problems = " ".join(each["detail"] for name, each in findings.items() if "size" in name)
    assert "4096 ranks need a CPU each" in problems


def test_a_configuration_that_fits_says_what_it_takes(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    roomy = Machine(device_bytes=None, node_bytes=1 << 40, num_cpus=64)
    monkeypatch.setattr(doctor_config, "machine_at_hand", lambda _: roomy)
    [finding] = examine_config(load_config(model), 0, ())
    assert finding.is_ok
    assert "of weights" in finding.detail


@pytest.mark.parametrize(("num_gpus", "is_ok"), [(0, False), (1, False), (2, True)])
def test_each_rank_needs_a_gpu(model: str, num_gpus: int, is_ok: bool) -> None:
    config = load_config(model, {**CUDA, "parallel": {"dp": 2}})
    findings = {each.subject: each for each in examine_config(config, num_gpus, ())}
    assert findings["config: GPUs"].is_ok == is_ok
    assert f"{num_gpus} here, 2 needed" in findings["config: GPUs"].detail


@pytest.mark.parametrize("is_usable", [False, True])
def test_the_backend_that_is_asked_for_must_be_usable(model: str, is_usable: bool) -> None:
    backends = (
        BackendReport("nixl", not is_usable, "something"),
        BackendReport("s3", is_usable, "its library"),
    )
    findings = examine_config(load_config(model, S3), 0, backends)
    [finding] = [each for each in findings if each.subject == "config: cache.l3"]
    assert (finding.is_ok, finding.detail) == (is_usable, "s3: its library")


def test_a_model_that_cannot_be_sized_is_a_finding_not_an_end(tmp_path: Path) -> None:
    [finding] = examine_config(load_config(tmp_path), 0, ())
    assert not finding.is_ok
    assert "config.json" in finding.detail
