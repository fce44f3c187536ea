"""The model of a rank that sleeps: it serves again as it is, if all its memory comes back in place.

What is captured in graphs remembers addresses. Pages and weights that have the same ones after the
wake are read by the same graphs; where they may have others, graphs are captured anew.
"""

import gc
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import torch

from raydix.errors import AccountingError, ConfigError
from raydix.runtime.actors.gpu_model import GpuModel
from raydix.runtime.config.capacity import format_bytes
from raydix.runtime.model.steps.runner import ModelRunner
from raydix.runtime.phases import phase
from raydix.runtime.tiers.memory_region import MemoryRegion, definite
from raydix.runtime.tiers.parked_weights import ParkedWeights, free_storages
from raydix.runtime.tiers.peer_pools import PeerPools

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedModel:
    """A model with pools and graphs, and what has to go when it gives its memory back."""

    model: GpuModel
    runner: ModelRunner
    made: PeerPools
    num_pages: tuple[int, ...]
    addresses: tuple[int, ...]
    """Where its pools and weights were when graphs were captured."""


class KeptModel:
    """Owns: the model that serves, and from its `give_back` on whether it will serve again."""

    def __init__(
        self,
        make: Callable[[tuple[int, ...]], PreparedModel],
        weights: ParkedWeights,
        device: torch.device,
    ) -> None:
        """`make`: a model of pools of so many pages, as `LoadedGpuModel.prepare` says."""
        self._make = make
        self._weights = weights
        self._device = definite(device)
        self._kept: PreparedModel | None = None

    def prepare(self, num_pages: tuple[int, ...]) -> GpuModel:
        """Have the model that was kept take its memory again, or make one, if none is kept for it.

        Weights are on the device. Raises ConfigError if there is no room.
        """
        if self._device.type == "cuda":
            # The thread may be another one than that which loaded.
            torch.cuda.set_device(self._device)
        kept = self._kept
        if kept is not None and kept.num_pages == num_pages:
            with _room_wanted(), phase(logger, "pools taken again"):
                _take_again(kept, self._weights, self._device)
            self._kept = None
            # It has rehearsed, and nothing is new.
            return self._own(kept, replace(kept.model, rehearse=_nothing))
        if kept is not None:
            self._kept = None
            self._drop(kept)
        with _room_wanted():
            made = self._make(num_pages)
        return self._own(made, made.model)

    def _own(self, prepared: PreparedModel, model: GpuModel) -> GpuModel:
        return replace(model, give_back=partial(self._give_back, prepared))

    def _give_back(self, prepared: PreparedModel) -> bool:
        """Free pools, and graphs if they cannot be kept. Returns whether the model is kept."""
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
            torch.cuda.synchronize(self._device)
        regions = [*prepared.made.regions, *self._weights.regions]
        reason = why_anew(regions, is_shared=not prepared.made.regions)
        if reason is not None:
            logger.info("the wake makes pools anew, and captures graphs: %s", reason)
            self._drop(prepared)
            return False

        for region in prepared.made.regions:
            region.give_back()
        self._kept = prepared
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
            logger.info(
                "graphs stay, with %s of the device: pages and weights come back in place",
                format_bytes(torch.cuda.memory_reserved(self._device)),
            )
        return True

    def _drop(self, prepared: PreparedModel) -> None:
        """Free pools and graphs, whoever still refers to them."""
        prepared.runner.release()
        for region in prepared.made.regions:
            region.give_back()
        free_storages(prepared.made.pools if not prepared.made.regions else ())
        if self._device.type == "cuda":
            # A graph that was dropped keeps its memory until it is collected.
            gc.unfreeze()
            gc.collect()
            torch.cuda.synchronize(self._device)
            torch.cuda.empty_cache()


def why_anew(regions: Sequence[MemoryRegion], *, is_shared: bool) -> str | None:
    """Why graphs cannot be kept that read these pages and weights; None: they can.

    `is_shared`: whether ranks map pages of each other.
    """
    if is_shared:
        return "ranks map pages of each other"
    if not all(region.keeps_place for region in regions):
        return "the device maps no memory at addresses that were reserved"
    return None


def addresses_of(made: PeerPools, weights: ParkedWeights) -> tuple[int, ...]:
    """Where these are now."""
    return (*(pool.data_ptr() for pool in made.pools), *weights.addresses)


def _take_again(kept: PreparedModel, weights: ParkedWeights, device: torch.device) -> None:
    regions = kept.made.regions
    try:
        for region in regions:
            region.take_again()
    except torch.OutOfMemoryError:
        for region in regions:
            region.give_back()
        raise
    now = addresses_of(kept.made, weights)
    if now != kept.addresses:
        moved = sum(here != there for here, there in zip(now, kept.addresses, strict=True))
        raise AccountingError(
            f"{moved} of {len(now)} pools and weights are not where graphs would read them"
        )

    # As new ones: what a kernel reads of a page that nobody has written is a number.
    for pool in kept.made.pools:
        pool.zero_()
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _nothing() -> None:
    """There is nothing that would be done for the first time."""


@contextmanager
def _room_wanted() -> Iterator[None]:
    """Raise ConfigError if the device has too little memory."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise ConfigError(
            f"The device has no room for pages and graphs ({error}). Put the engine that uses it "
            "to sleep first, or give this one less memory."
        ) from error
