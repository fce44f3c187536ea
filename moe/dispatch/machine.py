"""What probes ask of a machine: its packages, libraries, GPUs and network cards."""

import ctypes
import importlib
from pathlib import Path

import torch

from raydix.moe.dispatch.packages import Packages


class Machine:
    """The machine that this process runs on, as this process sees it."""

    def __init__(self, nics: Path = Path("/sys/class/infiniband")) -> None:
        self._nics = nics
        self.packages = Packages()
        self.torch_version = str(torch.__version__)
        self.is_rocm = torch.version.hip is not None
        self.num_gpus = torch.cuda.device_count()
        built = {
            "gloo": torch.distributed.is_gloo_available(),
            "nccl": torch.distributed.is_nccl_available(),
        }
        self.torch_libraries = frozenset(name for name, is_there in built.items() if is_there)

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
