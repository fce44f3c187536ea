import json
import subprocess
import sys
from pathlib import Path

import pytest

from raydix.moe.dispatch.machine import DRIVERS, Machine
from raydix.moe.dispatch.packages import Packages
from raydix.moe.dispatch.probes import BUILT_IN, probe
from tests.moe.fake_machine import VERSIONS, FakeMachine


def test_a_library_that_fits_is_available_and_says_its_version() -> None:
    machine = FakeMachine()
    verdict = probe("deepep", machine)

    assert verdict.obstacle is None
    assert f"sgl-deep-ep {VERSIONS['sgl-deep-ep']}" in str(verdict)
    assert machine.imported == ["deep_ep"]


@pytest.mark.parametrize(
    ("backend", "machine", "reason"),
    [
        ("deepep", FakeMachine(versions={}), "not installed; pip install"),
        ("deepep", FakeMachine(rocm=True), "needs NVIDIA GPUs"),
        ("deepep", FakeMachine(pinned_torch="2.14.1"), "built for torch 2.14.1, this is 2.11.0"),
        ("deepep", FakeMachine(num_gpus=1), "at least 2 GPUs that this process sees, there are 1"),
        ("deepep", FakeMachine(strangers=((0, 1),)), "GPUs 0 and 1 cannot read"),
    ],
)
def test_what_does_not_fit_is_not_even_imported(
    backend: str, machine: FakeMachine, reason: str
) -> None:
    verdict = probe(backend, machine)

    assert str(verdict).startswith("unavailable: ")
    assert reason in str(verdict)
    assert machine.imported == []


@pytest.mark.parametrize(
    ("machine", "usable"),
    [
        (FakeMachine(), {"symmetric", "nccl", "gloo"}),
        (FakeMachine(has_triton=False), {"nccl", "gloo"}),
        (FakeMachine(torch_version="2.9.1"), {"nccl", "gloo"}),
        (FakeMachine(strangers=((0, 1),)), {"nccl", "gloo"}),
        (FakeMachine(num_gpus=1), {"gloo"}),
        (FakeMachine(rocm=True), {"gloo"}),
        (FakeMachine(torch_libraries=("gloo",)), {"symmetric", "gloo"}),
        (FakeMachine(torch_libraries=(), num_gpus=0), set()),
    ],
)
def test_what_needs_no_library_says_what_torch_and_gpus_allow(
    machine: FakeMachine, usable: set[str]
) -> None:
    verdicts = [probe(backend, machine) for backend in BUILT_IN]
    assert {verdict.backend for verdict in verdicts if verdict.obstacle is None} == usable
    assert all(machine.torch_version in str(each) for each in verdicts if each.obstacle is None)


def test_the_loader_s_words_are_the_reason() -> None:
    words = "undefined symbol: ncclCommQueryProperties"
    assert words in str(probe("deepep", FakeMachine(import_error=words)))


def test_the_probe_of_deepep_says_which_nics_it_finds(tmp_path: Path) -> None:
    assert "no InfiniBand NIC" in probe("deepep", FakeMachine(nics=tmp_path)).detail
    (tmp_path / "mlx5_0").mkdir()
    (tmp_path / "rxe0").mkdir()
    assert "could use mlx5_0," in probe("deepep", FakeMachine(nics=tmp_path)).detail


def test_a_probe_in_a_process_of_its_own_prints_its_verdict() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "raydix.moe.dispatch.verdicts", "deepep"],
        capture_output=True,
        text=True,
        check=True,
    )
    verdict = json.loads(result.stdout)
    assert verdict["backend"] == "deepep"
    assert verdict["obstacle"]


def test_a_symbol_is_looked_for_in_its_version() -> None:
    machine = Machine()
    assert machine.symbol_error("libc.so.6", "memcpy", "GLIBC_2.14") is None
    assert machine.symbol_error("libc.so.6", "memcpy", None) is None
    assert "GLIBC_9.9" in str(machine.symbol_error("libc.so.6", "memcpy", "GLIBC_9.9"))
    assert "cannot open" in str(machine.symbol_error("libmissing.so.1", "memcpy", None))


def test_a_pinned_torch_is_read_from_a_package_s_requirements() -> None:
    assert Packages().required_torch("nothing-of-that-name") is None
    assert Packages().required_torch("numpy") is None


def test_a_module_of_the_right_name_may_be_the_wrong_one() -> None:
    assert Machine().import_error("json", "loads") is None
    assert Machine().import_error("json", "Buffer") == "it has no Buffer"
    assert "No module named" in str(Machine().import_error("nothing_of_that_name", "Buffer"))


def test_a_machine_says_of_torch_what_torch_says_of_itself() -> None:
    import torch

    machine = Machine()
    built = {
        "gloo": torch.distributed.is_gloo_available(),
        "nccl": torch.distributed.is_nccl_available(),
    }
    assert machine.torch_libraries == {name for name, is_there in built.items() if is_there}
    assert machine.torch_version == torch.__version__
    assert machine.is_rocm == (torch.version.hip is not None)
    assert machine.num_gpus == torch.cuda.device_count()


@pytest.mark.skipif(any(each.exists() for each in DRIVERS), reason="there is a driver of GPUs")
def test_backends_are_probed_without_torch_where_there_is_no_driver() -> None:
    code = (
        "import sys; from raydix.moe.dispatch.verdicts import main; "
        f"sys.argv[1:] = {sorted(BUILT_IN)}; main(); print('torch' in sys.modules)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.splitlines()[-1] == "False"
