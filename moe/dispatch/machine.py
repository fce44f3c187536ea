"""What probes ask of a machine: its packages, libraries, GPUs and network cards."""

import ctypes
import importlib
import importlib.util
import re
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

import torch


class Machine:
    """The machine that this process runs on, as this process sees it."""

    def __init__(self, nics: Path = Path("/sys/class/infiniband")) -> None:
        self._nics = nics
        self.torch_version = str(torch.__version__)
        self.is_rocm = torch.version.hip is not None
        self.num_gpus = torch.cuda.device_count()

    def version(self, distribution: str) -> str | None:
        """Of an installed package; None: it is not installed."""
        try:
            return version(distribution)
        except PackageNotFoundError:
            return None

    def has_module(self, module: str) -> bool:
        """Is it to be found, though perhaps not by a package's name?"""
        try:
            return importlib.util.find_spec(module) is not None
        except ImportError:
            return False

    def required_torch(self, distribution: str) -> str | None:
        """The one torch that an installed package asks for; None: it names none."""
        if self.version(distribution) is None:
            return None
        for line in requires(distribution) or ():
            match = re.fullmatch(r"torch\s*==\s*([^;\s]+).*", line)
            if match is not None:
                return match[1]
        return None

    def unreachable_peers(self) -> list[tuple[int, int]]:
        """Pairs of GPUs that cannot read each other's memory."""
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

        if _has_symbol(handle, symbol, symbol_version):
            return None
        return f"{library} has no {symbol} of version {symbol_version}"

    def import_error(self, module: str) -> str | None:
        """What comes of importing it; None: it works."""
        try:
            importlib.import_module(module)
        except (ImportError, OSError, AssertionError, RuntimeError) as error:
            # Wheels of DeepEP assert which NCCL is loaded.
            lines = str(error).strip().splitlines()
            return lines[-1] if lines else type(error).__name__
        return None


def _has_symbol(library: ctypes.CDLL, symbol: str, version: str) -> bool:
    find = ctypes.CDLL(None).dlvsym
    find.restype = ctypes.c_void_p
    find.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p)
    return bool(find(library._handle, symbol.encode(), version.encode()))
