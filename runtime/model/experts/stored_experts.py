"""A rank's seats and the node's store of all experts: each fills the other."""

import hashlib
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch

from raydix.ids import LogicalExpertId
from raydix.moe.bank import ExpertBank
from raydix.runtime.model.decoder.decoder import Decoder
from raydix.runtime.model.experts.expert_bytes import ExpertCopier, expert_bytes, make_copier
from raydix.runtime.tiers.expert_store import ExpertStore, StoreContent

logger = logging.getLogger(__name__)

_NUM_THREADS = {"cpu": 1, "cuda": 4}
"""The number of threads that copy while a rank loads."""
_Place = tuple[int, int, LogicalExpertId]
"""Layer, seat, and the expert that it holds or is to hold."""


class StoredExperts:
    """Owns: this rank's mapping of the store. The seats belong to their banks.

    For one thread at a time. `banks`: those of the layers with experts, in order.
    """

    def __init__(
        self, banks: Sequence[ExpertBank], store: ExpertStore, device: torch.device
    ) -> None:
        self._banks = banks
        self._store = store
        # Beside steps one is enough, and takes least from them.
        self._copiers = [make_copier(device) for _ in range(_NUM_THREADS[device.type])]

    @property
    def weight_fingerprint(self) -> bytes | None:
        """The fingerprint of the whole checkpoint, if the store holds all of its experts."""
        return self._store.weight_fingerprint if self._store.is_complete else None

    def fill_seat(self, layer: int, seat: int, expert: LogicalExpertId) -> None:
        """Bring an expert from the store into a seat that no rank routes to.

        Returns once it is there for every stream.
        """
        bank = self._banks[layer]
        # Neither the one nor the other until it is all there.
        bank.hold(seat, None)
        self._load(self._copiers[0], (layer, seat, expert))
        bank.hold(seat, expert)

    def fill_seats(self) -> None:
        """Bring every expert that is to be in a seat, before any step."""
        self._each(self._held(), self._load)

    def fill_store(self, weight_fingerprint: bytes) -> None:
        """Put in what seats hold, as it was loaded, and the store lacks."""
        held = [each for each in self._held() if not self._store.is_filled(each[0], each[2])]
        self._each(held, self._keep)
        self._store.set_weight_fingerprint(weight_fingerprint)

    def held(self, layer: int) -> tuple[LogicalExpertId | None, ...]:
        """What the seats of a layer hold."""
        return self._banks[layer].held

    def close(self) -> None:
        """Drop the mapping."""
        self._store.close()

    def _held(self) -> list[_Place]:
        return [
            (layer, seat, expert)
            for layer, bank in enumerate(self._banks)
            for seat, expert in enumerate(bank.held)
            if expert is not None
        ]

    def _each(self, places: list[_Place], copy: Callable[[ExpertCopier, _Place], None]) -> None:
        """Copy all of these, in several threads: one alone cannot fill the bus."""
        # Seats were just made: they may not have been cleared, or filled, yet.
        self._copiers[0].wait_for_device()
        num_threads = len(self._copiers)

        def copy_some(thread: int) -> None:
            for place in places[thread::num_threads]:
                copy(self._copiers[thread], place)

        with ThreadPoolExecutor(num_threads) as pool:
            for _ in pool.map(copy_some, range(num_threads)):
                pass

    def _load(self, copier: ExpertCopier, place: _Place) -> None:
        layer, seat, expert = place
        stored_B = torch.from_numpy(self._store.expert(layer, expert))
        copier.to_seat(stored_B, self._banks[layer].tensors(seat))

    def _keep(self, copier: ExpertCopier, place: _Place) -> None:
        layer, seat, expert = place
        stored_B = torch.from_numpy(self._store.expert(layer, expert))
        copier.from_seat(self._banks[layer].tensors(seat), stored_B)
        self._store.mark_filled(layer, expert)


def open_stored_experts(decoder: Decoder, source: bytes) -> StoredExperts | None:
    """The node's store, for the seats of a decoder; None if there is none.

    `source`: what the weights are read or drawn from, without reading them. Raises as
    `ExpertStore.open`.
    """
    if decoder.experts is None or decoder.experts.ranks.memory is None:
        return None
    described = f"{decoder.spec.digest().hex()} {decoder.dtype} {source.hex()}"
    banks = [module for module in decoder.modules() if isinstance(module, ExpertBank)]
    num_experts = decoder.experts.placement.num_experts
    content = StoreContent(
        identity=hashlib.sha256(described.encode()).digest(),
        num_layers=len(banks),
        num_experts=num_experts,
        expert_bytes=max(expert_bytes(bank.tensors(0)) for bank in banks),
    )
    logger.info("%d bytes of experts are in the node's memory", content.size_bytes)
    store = ExpertStore.open(decoder.experts.ranks.memory, content)
    return StoredExperts(banks, store, decoder.device)
