"""A rank's slots and the node's store of all experts: each fills the other."""

import hashlib
import logging
from collections.abc import Sequence

import torch

from raydix.ids import LogicalExpertId
from raydix.moe.bank import ExpertBank
from raydix.runtime.model.decoder import Decoder
from raydix.runtime.model.expert_bytes import expert_bytes, make_copier
from raydix.runtime.tiers.expert_store import ExpertStore, StoreContent

logger = logging.getLogger(__name__)


class StoredExperts:
    """Owns: this rank's mapping of the store. The slots belong to their banks.

    For one thread at a time. `banks`: those of the layers with experts, in order.
    """

    def __init__(
        self, banks: Sequence[ExpertBank], store: ExpertStore, device: torch.device
    ) -> None:
        self._banks = banks
        self._store = store
        self._copier = make_copier(device)

    @property
    def weight_fingerprint(self) -> bytes | None:
        """That of the whole checkpoint, if the store holds all of its experts."""
        return self._store.weight_fingerprint if self._store.is_complete else None

    @torch.inference_mode()
    def fill_slot(self, layer: int, slot: int, expert: LogicalExpertId) -> None:
        """Bring an expert from the store into a slot that no rank routes to.

        Returns once it is there for every stream.
        """
        bank = self._banks[layer]
        # Neither the one nor the other until it is all there.
        bank.hold(slot, None)
        stored_B = torch.from_numpy(self._store.expert(layer, expert))
        self._copier.to_slot(stored_B, bank.tensors(slot).all())
        bank.hold(slot, expert)

    def fill_slots(self) -> None:
        """Bring every expert that is to be in a slot."""
        # Slots were just made, and may not have been cleared yet.
        self._copier.wait_for_device()
        for layer, bank in enumerate(self._banks):
            for slot, expert in enumerate(bank.held):
                if expert is not None:
                    self.fill_slot(layer, slot, expert)

    @torch.inference_mode()
    def fill_store(self, weight_fingerprint: bytes) -> None:
        """Put in what slots hold, as it was loaded, and the store lacks."""
        self._copier.wait_for_device()
        for layer, bank in enumerate(self._banks):
            for slot, expert in enumerate(bank.held):
                if expert is None or self._store.is_filled(layer, expert):
                    continue
                stored_B = torch.from_numpy(self._store.expert(layer, expert))
                self._copier.from_slot(bank.tensors(slot).all(), stored_B)
                self._store.mark_filled(layer, expert)
        self._store.set_weight_fingerprint(weight_fingerprint)

    def held(self, layer: int) -> tuple[LogicalExpertId | None, ...]:
        """What the slots of a layer hold."""
        return self._banks[layer].held

    def close(self) -> None:
        """Drop the mapping."""
        self._store.close()


def open_stored_experts(decoder: Decoder, source: bytes) -> StoredExperts | None:
    """The node's store, for the slots of a decoder; None if there is none.

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
        expert_bytes=max(expert_bytes(bank.tensors(0).all()) for bank in banks),
    )
    logger.info("%d bytes of experts are in the node's memory", content.size_bytes)
    store = ExpertStore.open(decoder.experts.ranks.memory, content)
    return StoredExperts(banks, store, decoder.device)
