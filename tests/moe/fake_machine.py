"""A machine for probes: two GPUs, and all libraries of others, none of which is really there."""

from collections.abc import Mapping
from pathlib import Path

from raydix.moe.dispatch.machine import Machine
from raydix.moe.dispatch.packages import Packages

VERSIONS = {
    "sgl-deep-ep": "0.1.2.post1",
    "nixl-cu13": "1.2.0",
    "mooncake-transfer-engine-cuda13": "0.3.13.post1",
    "amd-mori": "1.0",
}


class FakePackages(Packages):
    """Packages other than those of this environment."""

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
