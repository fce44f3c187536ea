import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from raydix.moe.dispatch.libraries import ADAPTERS
from raydix.moe.dispatch.machine import Machine
from raydix.moe.dispatch.packages import Packages
from raydix.moe.dispatch.probes import BUILT_IN, LIBRARIES, probe

VERSIONS = {
    "sgl-deep-ep": "0.1.2.post1",
    "nixl-cu13": "1.2.0",
    "mooncake-transfer-engine-cuda13": "0.3.13.post1",
    "amd-mori": "1.0",
}


class FakePackages(Packages):
    """Not those of this environment."""

    def __init__(self, versions: Mapping[str, str], pinned_torch: str, *, has_triton: bool) -> None:
        self._versions = versions
        self._pinned_torch = pinned_torch
        self._has_triton = has_triton

    def version(self, distribution: str) -> str | None:
        return self._versions.get(distribution)

    def has_module(self, module: str) -> bool:
        return self._has_triton and module == "triton"

    def required_torch(self, distribution: str) -> str | None:
        return self._pinned_torch


class FakeMachine(Machine):
    """Two GPUs that reach each other, with all libraries, none of which is really there."""

    def __init__(
        self,
        *,
        torch_version: str = "2.11.0+cu130",
        rocm: bool = False,
        num_gpus: int = 2,
        strangers: tuple[tuple[int, int], ...] = (),
        versions: Mapping[str, str] = VERSIONS,
        pinned_torch: str = "2.11.0",
        missing: str | None = None,
        import_error: str | None = None,
        nics: Path = Path("/nonexistent"),
        has_triton: bool = True,
        torch_libraries: tuple[str, ...] = ("gloo", "nccl"),
    ) -> None:
        super().__init__(nics)
        self.packages = FakePackages(versions, pinned_torch, has_triton=has_triton)
        self.torch_libraries = frozenset(torch_libraries)
        self.torch_version = torch_version
        self.is_rocm = rocm
        self.num_gpus = num_gpus
        self._strangers = strangers
        self._missing = missing
        self._error = import_error
        self.imported: list[str] = []

    def unreachable_peers(self) -> list[tuple[int, int]]:
        return list(self._strangers)

    def symbol_error(self, library: str, symbol: str, symbol_version: str | None) -> str | None:
        return f"{library} is missing" if library == self._missing else None

    def import_error(self, module: str, attribute: str) -> str | None:
        self.imported.append(module)
        return self._error


@pytest.mark.parametrize("backend", ["deepep", "nixl_ep"])
def test_a_library_that_fits_is_available_and_says_its_version(backend: str) -> None:
    machine = FakeMachine()
    verdict = probe(backend, machine)

    assert verdict.obstacle is None
    assert any(f"{name} {version}" in str(verdict) for name, version in VERSIONS.items())
    assert machine.imported == [LIBRARIES[backend].module]


def test_mori_is_for_rocm_alone() -> None:
    assert probe("mori", FakeMachine(rocm=True)).obstacle is None
    assert "AMD" in str(probe("mori", FakeMachine()))
    assert "NVIDIA" in str(probe("nixl_ep", FakeMachine(rocm=True)))


@pytest.mark.parametrize(
    ("backend", "machine", "reason"),
    [
        ("deepep", FakeMachine(versions={}), "not installed; pip install"),
        ("deepep", FakeMachine(pinned_torch="2.14.1"), "built for torch 2.14.1, this is 2.11.0"),
        ("nixl_ep", FakeMachine(torch_version="2.13.0"), "built for torch 2.11 and 2.12"),
        ("nixl_ep", FakeMachine(versions={"nixl-cu13": "9.0.1"}), "not known which torch"),
        ("nixl_ep", FakeMachine(num_gpus=1), "at least 2 GPUs that this process sees, there are 1"),
        ("mooncake_ep", FakeMachine(strangers=((0, 1),)), "GPUs 0 and 1 cannot read"),
        ("mooncake_ep", FakeMachine(missing="libmlx5.so.1"), "install the system's ibverbs-prov"),
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


def test_every_adapter_has_a_probe() -> None:
    assert ADAPTERS.keys() == LIBRARIES.keys()


def test_a_probe_in_a_process_of_its_own_prints_its_verdict() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "raydix.moe.dispatch.verdicts", "mori"],
        capture_output=True,
        text=True,
        check=True,
    )
    verdict = json.loads(result.stdout)
    assert verdict["backend"] == "mori"
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
