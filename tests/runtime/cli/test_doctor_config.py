"""`raydix doctor CONFIG`: what this machine lacks for it."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from raydix.runtime.actors.pulls.carriers import NixlFacts
from raydix.runtime.cli import doctor_config, pull_transport
from raydix.runtime.cli.config_check import Machine
from raydix.runtime.cli.doctor_config import examine_config
from raydix.runtime.cli.doctor_storage import BackendReport
from raydix.runtime.cli.findings import Finding
from raydix.runtime.config.loading import load_config
from raydix.runtime.model.families.table import Family
from tests.checkpoints import make_checkpoint
from tests.quantised_checkpoints import make_quantised

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


def test_of_a_quantised_model_format_and_way_are_told_and_what_is_wrong_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    roomy = Machine(device_bytes=None, node_bytes=1 << 40, num_cpus=64)
    monkeypatch.setattr(doctor_config, "machine_at_hand", lambda _: roomy)
    folder, _ = make_quantised(tmp_path, Family.QWEN3, "awq")
    [finding] = examine_config(load_config(str(folder)), 0, ())
    assert finding.is_ok
    assert "stored as awq, 4 bits in groups of 16 inputs (way: restore)" in finding.detail

    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"]["group_size"] = 32
    (folder / "config.json").write_text(json.dumps(config))
    [finding] = examine_config(load_config(str(folder)), 0, ())
    assert not finding.is_ok
    assert re.search(r"_proj\.\w+ in .* has shape .*; expected", finding.detail)


def test_weights_that_are_missing_are_told(model: str, tmp_path: Path) -> None:
    shutil.copy(Path(model) / "config.json", tmp_path)
    [finding] = examine_config(load_config(str(tmp_path)), 0, ())
    assert not finding.is_ok
    assert f"{tmp_path} holds no weights" in finding.detail


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
    finding = storage_finding(model, S3, backends=backends)
    assert finding.is_ok == is_usable
    assert is_usable or finding.detail == "s3: its library"


def storage_finding(
    model: str,
    settings: dict[str, Any],
    obstacle: str | None = None,
    backends: tuple[BackendReport, ...] = (),
) -> Finding:
    findings = examine_config(load_config(model, settings), 0, backends, lambda section: obstacle)
    [finding] = [each for each in findings if each.subject == "config: cache.l3"]
    return finding


@pytest.mark.parametrize("is_lazy", [False, True])
def test_a_store_that_does_not_answer_is_in_the_way_unless_it_may_be_late(
    model: str, is_lazy: bool
) -> None:
    settings = {"cache": {"l3": {**S3["cache"]["l3"], "lazy": is_lazy}}}
    finding = storage_finding(model, settings, "no such bucket")
    assert (finding.is_ok, finding.is_optional) == (False, is_lazy)
    assert finding.detail == "s3: no such bucket"
    assert storage_finding(model, settings).is_ok


def test_doctor_tries_the_folder_of_l3_and_leaves_nothing_there(
    run: Callable[..., int], capsys: pytest.CaptureFixture[str], model: str, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")

    def told(path: Path) -> dict[str, Any]:
        settings = ["cache.l3.backend=file", f"cache.l3.path={path}"]
        run("doctor", model, *(word for each in settings for word in ("--set", each)), "--json")
        findings: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
        [finding] = [each for each in findings if each["subject"] == "config: cache.l3"]
        return finding

    assert told(tmp_path / "new" / "kv")["ok"]
    below_a_file = told(tmp_path / "file" / "kv")

    assert not below_a_file["ok"]
    assert str(tmp_path / "file") in below_a_file["detail"]
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_a_model_that_cannot_be_sized_is_a_finding_not_an_end(tmp_path: Path) -> None:
    [finding] = examine_config(load_config(tmp_path), 0, ())
    assert not finding.is_ok
    assert "config.json" in finding.detail


def test_a_bound_beyond_the_whole_disk_is_an_obstacle(model: str, tmp_path: Path) -> None:
    """Raydix evicts by its bound alone: a full disk below it would keep old pages for ever."""
    for max_bytes, is_ok in (("1MiB", True), ("1000000TiB", False)):
        l3 = {"backend": "file", "path": str(tmp_path / "absent"), "max_bytes": max_bytes}
        config = load_config(model, {"cache": {"l3": l3}})
        findings = {each.subject: each for each in examine_config(config, 0, ())}
        found = findings["config: cache.l3"]
        assert (found.is_ok, "the whole disk of" in found.detail) == (is_ok, not is_ok)


@pytest.mark.parametrize(("transport", "is_ok"), [("auto", True), ("tcp", True), ("nixl", False)])
def test_a_transport_that_is_wanted_and_lacking_is_told(
    model: str, monkeypatch: pytest.MonkeyPatch, transport: str, is_ok: bool
) -> None:
    bare = NixlFacts(is_installed=False, has_rdma=False, is_encrypted=False)
    monkeypatch.setattr(pull_transport, "nixl_facts", lambda _: bare)
    l2 = {"bytes_per_node": "64MiB", "pull": {"transport": transport}}
    config = load_config(model, {"cache": {"l2": l2}})
    findings = {each.subject: each for each in examine_config(config, 0, ())}
    told = findings["config: cache.l2.pull"]
    assert (told.is_ok, told.is_optional) == (is_ok, True)
    assert told.detail.startswith("tcp: ")
