"""The arena as memory that a CUDA device may copy from and to by itself."""

import logging
import threading

import torch
from torch import Tensor

from raydix.runtime.config.capacity import format_bytes
from raydix.runtime.phases import aside
from raydix.runtime.tiers.host_arena import HostArena
from raydix.runtime.tiers.transfers import OnError

logger = logging.getLogger(__name__)

_PORTABLE = 1  # cudaHostRegisterPortable


class ArenaRegistration:
    """Owns: which part of an arena is registered with CUDA.

    A thread registers slab by slab, from the first on.

    Until a slab is registered, copies of its pages are staged by the driver and block the thread
    that starts them.
    """

    def __init__(self, arena: HostArena, device: torch.device, on_error: OnError) -> None:
        self._geometry = arena.geometry
        self._device = device
        self._on_error = on_error
        self._stop = threading.Event()
        self._registered: list[int] = []
        self.bytes: Tensor = torch.frombuffer(arena.buffer, dtype=torch.uint8)
        """The whole arena, as bytes."""
        self.num_slabs = 0
        """The number of slabs that are registered, counted from slab 0."""
        self._thread = threading.Thread(target=self._run, name="register-arena", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Return once the whole arena is registered."""
        self._thread.join()

    def close(self) -> None:
        """Stop registering and undo what was registered. No copy may be under way."""
        self._stop.set()
        self._thread.join()
        for pointer in self._registered:
            _check(torch.cuda.cudart().cudaHostUnregister(pointer), "cudaHostUnregister")
        self._registered.clear()
        self.num_slabs = 0

    def _run(self) -> None:
        try:
            torch.cuda.set_device(self._device)
            with aside(logger, f"arena of {format_bytes(self.bytes.nbytes)} registered"):
                self._register()
        except Exception as error:
            logger.exception("the arena cannot be registered with %s", self._device)
            self._on_error(error)

    def _register(self) -> None:
        for slab in range(self._geometry.num_slabs):
            if self._stop.is_set():
                return

            offset = self._geometry.slabs_offset + slab * self._geometry.slab_bytes
            pointer = self.bytes.data_ptr() + offset
            status = torch.cuda.cudart().cudaHostRegister(
                pointer, self._geometry.slab_bytes, _PORTABLE
            )
            _check(status, "cudaHostRegister")
            self._registered.append(pointer)
            # Last: those who read the number take the slab for registered.
            self.num_slabs = slab + 1


def _check(status: object, call: str) -> None:
    if int(status) != 0:  # type: ignore[call-overload]
        raise RuntimeError(f"{call} returned {status}")
