"""What a rank takes of its device beside pages, known before any rank starts.

Weights and buffers are exact. Steps are estimated, on the safe side: a start measures them, on the
GPU that is there, before it sizes L1.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from raydix.errors import ConfigError
from raydix.runtime.config.capacity import format_bytes
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.config.kv_layout import GroupKind

if TYPE_CHECKING:
    from raydix.runtime.model.checkpoint.model_sizes import ModelSizes

_NUMBERS_PER_OUTPUT = 2
"""What a product gives, and as much again for what is made of it before the next one reads it."""
_LOGITS_COPIES = 2
_OF_ALL_SIZES = 2
"""Steps of rising sizes leave blocks in torch's allocator into which larger ones do not fit: those
of 1/2, 1/4 ... of the largest step take as much as that. Captures begin with the largest.
"""
_LIBRARY_BYTES = 256 << 20
"""cuBLAS has a workspace of 32 MiB on each stream that multiplies, and captures have a stream of
their own; the rest is for the gaps in torch's blocks of memory.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceNeeds:
    """Bytes of one rank; but for weights nothing on cpu."""

    weight_bytes: int
    step_bytes: int = 0
    """The largest step."""
    graph_bytes: int = 0
    """What captured steps keep for themselves, so that it is there when they are replayed."""
    buffer_bytes: int = 0
    """Buffers for tokens on their way to experts of other ranks."""

    @property
    def num_bytes(self) -> int:
        """All of it."""
        return self.weight_bytes + self.step_bytes + self.graph_bytes + self.buffer_bytes

    def __str__(self) -> str:
        """What takes how much, for people."""
        *others, last = self._told()
        return f"{', '.join(others)} and {last}" if others else last

    def _told(self) -> Iterator[str]:
        yield f"weights take {format_bytes(self.weight_bytes)}"
        if self.step_bytes:
            yield f"the largest steps {format_bytes(self.step_bytes)}"
        if self.graph_bytes:
            yield f"captured steps {format_bytes(self.graph_bytes)}"
        if self.buffer_bytes:
            yield f"buffers of experts.dispatch {format_bytes(self.buffer_bytes)}"


def device_needs(config: EngineConfig, model: "ModelSizes") -> DeviceNeeds:
    """What a rank of the model takes. Raises ConfigError if it has no experts to share."""
    weight_bytes = _weight_bytes(config, model)
    if config.model.device != "cuda":
        return DeviceNeeds(weight_bytes=weight_bytes)
    # Imported here because they take seconds.
    from raydix.runtime.actors.bootstrap.dispatch_buffers import planned_buffer_bytes
    from raydix.runtime.model.steps.shape_choice import most_captured_tokens

    scheduler, max_positions = config.scheduler, model.max_position_embeddings
    max_model_len = min(config.model.max_model_len or max_positions, max_positions)
    num_captured = most_captured_tokens(
        scheduler.max_running_requests,
        scheduler.prefill_budget,
        has_latents=any(group.kind is GroupKind.LATENT for group in model.layout.groups),
        shares_experts=config.parallel.ep > 1,
    )
    return DeviceNeeds(
        weight_bytes=weight_bytes,
        step_bytes=_OF_ALL_SIZES
        * _step_bytes(config, model, scheduler.max_step_tokens(max_model_len)),
        # Shapes share their memory: all fit into that of the largest.
        graph_bytes=_step_bytes(config, model, num_captured) + _LIBRARY_BYTES,
        buffer_bytes=planned_buffer_bytes(config, model.checkpoint.spec, max_positions),
    )


def _weight_bytes(config: EngineConfig, model: "ModelSizes") -> int:
    """The bytes of a rank's weights; a rank has whole experts if ranks share them."""
    ep, experts = config.parallel.ep, config.experts
    if ep == 1:
        return model.rank_bytes
    if not model.num_experts:
        raise ConfigError(
            f"parallel.ep is {ep}, but the model has no experts. Set parallel.ep to 1."
        )
    num_seats = -(-model.num_experts // ep) + experts.redundant_per_rank + experts.spare_per_rank
    seat_bytes = model.all_expert_bytes // model.num_experts
    return model.rank_bytes - model.rank_expert_bytes + num_seats * seat_bytes


def _step_bytes(config: EngineConfig, model: "ModelSizes", num_tokens: int) -> int:
    """What a step of so many tokens holds at once: one layer's numbers, and the logits, float32."""
    parallel = config.parallel
    numbers = model.layer_outputs * _NUMBERS_PER_OUTPUT
    if parallel.ep == 1:
        numbers += model.rank_expert_numbers
    else:
        # The rows of each lane come to all ranks, and have places for all of their experts there.
        numbers += model.all_expert_numbers * parallel.ep // parallel.tp
    element_bytes = 4 if config.model.dtype == "float32" else 2
    activations = num_tokens * numbers * element_bytes
    logits = config.scheduler.max_running_requests * model.vocab_size * 4 * _LOGITS_COPIES
    return activations + logits
