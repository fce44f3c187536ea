"""The libraries of the plugins, as probes and entry points find them, and where installed, run."""

import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from raydix.moe.dispatch.entry_points import ENTRY_POINT_GROUP
from raydix.moe.dispatch.library import Library
from raydix.moe.dispatch.probes import probe_library
from raydix.plugins.dispatch.libraries import MOONCAKE_EP, MORI, NIXL_EP
from tests.moe.fake_machine import VERSIONS, FakeMachine
from tests.moe.library_conformance import CLAIMS, Claim, check_claim

ROOT = Path(__file__).resolve().parents[3]


def test_each_is_an_entry_point_of_its_name() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    table = project["entry-points"][ENTRY_POINT_GROUP]

    found = {
        name: EntryPoint(name, value, ENTRY_POINT_GROUP).load() for name, value in table.items()
    }

    assert found == {"nixl_ep": NIXL_EP, "mooncake_ep": MOONCAKE_EP, "mori": MORI}
    assert all(library.backend == name for name, library in found.items())


@pytest.mark.parametrize("library", [NIXL_EP, MOONCAKE_EP], ids=lambda library: library.backend)
def test_a_library_that_fits_is_available_and_says_its_version(library: Library) -> None:
    machine = FakeMachine()
    verdict = probe_library(library, machine)

    assert verdict.obstacle is None
    assert f"{library.distributions[0]} {VERSIONS[library.distributions[0]]}" in str(verdict)
    assert machine.imported == [library.module]


def test_mori_is_for_rocm_alone() -> None:
    assert probe_library(MORI, FakeMachine(rocm=True)).obstacle is None
    assert "AMD" in str(probe_library(MORI, FakeMachine()))
    assert "NVIDIA" in str(probe_library(NIXL_EP, FakeMachine(rocm=True)))


@pytest.mark.parametrize(
    ("library", "machine", "reason"),
    [
        (NIXL_EP, FakeMachine(torch_version="2.13.0"), "built for torch 2.11 and 2.12"),
        (NIXL_EP, FakeMachine(versions={"nixl-cu13": "9.0.1"}), "not known which torch"),
        (NIXL_EP, FakeMachine(num_gpus=1), "at least 2 GPUs that this process sees, there are 1"),
        (MOONCAKE_EP, FakeMachine(strangers=((0, 1),)), "GPUs 0 and 1 cannot read"),
        (MOONCAKE_EP, FakeMachine(missing="libmlx5.so.1"), "install the system's ibverbs-prov"),
    ],
)
def test_what_does_not_fit_is_not_even_imported(
    library: Library, machine: FakeMachine, reason: str
) -> None:
    verdict = probe_library(library, machine)

    assert str(verdict).startswith("unavailable: ")
    assert reason in str(verdict)
    assert machine.imported == []


@pytest.mark.multi_gpu
@pytest.mark.parametrize("name", ["NIXL_EP", "MOONCAKE_EP"])
@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.__name__)
def test_they_carry_tokens_and_are_refused_by_all_where_one_cannot_use_them(
    claim: Claim, name: str, tmp_path: Path
) -> None:
    check_claim(claim, f"raydix.plugins.dispatch.libraries:{name}", tmp_path)
