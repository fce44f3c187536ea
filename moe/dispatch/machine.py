"""What probes ask of a machine: its packages, libraries, GPUs and network cards.

Imports torch only where there is a driver of GPUs, as that takes more than a second.
"""

import ctypes
import importlib
import importlib.util
import mmap
from pathlib import Path

from raydix.moe.dispatch.packages import Packages

DRIVERS = (Path("/dev/nvidiactl"), Path("/dev/kfd"), Path("/dev/dxg"))
"""What there is of drivers of NVIDIA, of AMD, and of Windows below Linux."""
_CLASSES = {"gloo": b"N4c10d16ProcessGroupGloo", "nccl": b"N4c10d16ProcessGroupNCCL"}
"""The class of torch's for each library that it may be built with, as its compiler names it."""


class Machine:
    """The machine that this process runs on, as this process sees it."""

    def __init__(self, nics: Path = Path("/sys/class/infiniband")) -> None:
        self._nics = nics
        self.packages = Packages()
        torch_folder = _torch_folder()
        self.torch_version, hip = _torch_version(torch_folder)
        self.is_rocm = hip is not None
        self.num_gpus = _count_gpus() if any(each.exists() for each in DRIVERS) else 0
        self.torch_libraries = _libraries_in(torch_folder / "lib" / "libtorch_python.so")

    def unreachable_peers(self) -> list[tuple[int, int]]:
        """Pairs of GPUs that cannot read each other's memory."""
        import torch

        gpus = range(self.num_gpus)
        return [
            (one, other)
            for one in gpus
            for other in gpus
            if one != other and not torch.cuda.can_device_access_peer(one, other)
        ]

    def mellanox_nics(self) -> list[str]:
        """Network cards that GPUs can talk to by themselves."""
        if not self._nics.is_dir():
            return []
        return sorted(each.name for each in self._nics.iterdir() if each.name.startswith("mlx5"))

    def symbol_error(self, library: str, symbol: str, symbol_version: str | None) -> str | None:
        """Why a system's library cannot serve; None if it has the symbol in that version, or in
        any if none is named."""
        try:
            handle = ctypes.CDLL(library)
        except OSError as error:
            return str(error)

        if symbol_version is None:
            return None if hasattr(handle, symbol) else f"{library} has no {symbol}"

        signature = ctypes.CFUNCTYPE(
            ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p
        )
        find = signature(("dlvsym", ctypes.CDLL(None)))
        if find(handle._handle, symbol.encode(), symbol_version.encode()):
            return None
        return f"{library} has no {symbol} of version {symbol_version}"

    def import_error(self, module: str, attribute: str) -> str | None:
        """What comes of importing it; None: it works, and has the attribute."""
        try:
            imported = importlib.import_module(module)
        except (ImportError, OSError, AssertionError, RuntimeError) as error:
            # Wheels of DeepEP assert which NCCL is loaded.
            lines = str(error).strip().splitlines()
            return lines[-1] if lines else type(error).__name__
        return None if hasattr(imported, attribute) else f"it has no {attribute}"


def _torch_folder() -> Path:
    """Where torch is installed, without importing it. Raises ModuleNotFoundError."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("No module named 'torch'")
    return Path(spec.origin).parent


def _torch_version(folder: Path) -> tuple[str, str | None]:
    """The version of torch, and that of ROCm which it is built for."""
    spec = importlib.util.spec_from_file_location("torch_version", folder / "version.py")
    assert spec is not None, "torch has a file of its version"
    assert spec.loader is not None, "it can be loaded"
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return str(module.__version__), module.hip


def _count_gpus() -> int:
    """The GPUs that torch shows this process."""
    import torch

    return torch.cuda.device_count()


def _libraries_in(torch_binary: Path) -> frozenset[str]:
    """The libraries for which torch has a class that talks by them."""
    with (
        torch_binary.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
    ):
        return frozenset(name for name, class_ in _CLASSES.items() if content.find(class_) >= 0)
