"""What ranks keep of their GPUs for tokens on their way to experts of others, before any starts."""

import torch

from raydix.kernels.dispatch.token_inputs import ALIGNMENT_BYTES
from raydix.moe.dispatch.choose import winners
from raydix.moe.dispatch.protocol import DispatchShape
from raydix.moe.dispatch.symmetric_sizes import memory_bytes
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.config.policies import DispatchBackend
from raydix.runtime.model.decoder.expert_ranks import expert_counts
from raydix.runtime.model.spec.spec import ModelSpec
from raydix.runtime.model.steps.sent_tokens import SentTokens


def planned_buffer_bytes(config: EngineConfig, spec: ModelSpec, max_positions: int) -> int:
    """What a rank's buffers will take of its GPU, found where none need be.

    `auto` counts as `symmetric`, which it takes where GPUs can write each other's memory. What
    libraries of others take is theirs to say: their ranks find it as they connect. Raises
    ConfigError if the model has no experts to share.
    """
    parallel, experts = config.parallel, config.experts
    if parallel.ep == 1 or config.model.device != "cuda":
        return 0
    num_experts, experts_per_token = expert_counts(spec, parallel.ep)
    sent = SentTokens.of(config, config.model.max_model_len or max_positions, config.model.device)
    shape = DispatchShape(
        num_ranks=parallel.ep,
        seats_per_rank=-(-num_experts // parallel.ep)
        + experts.redundant_per_rank
        + experts.spare_per_rank,
        hidden_size=spec.hidden_size,
        experts_per_token=experts_per_token,
        max_tokens=sent.most,
        max_low_latency_tokens=sent.most_low_latency,
        dtype=getattr(torch, config.model.dtype),
        transport=experts.transport,
    )
    return memory_bytes(shape) if _is_symmetric(config.experts.dispatch, shape) else 0


def _is_symmetric(backend: DispatchBackend | str, shape: DispatchShape) -> bool:
    own = (DispatchBackend.NCCL.value, DispatchBackend.SYMMETRIC.value)
    if backend is DispatchBackend.AUTO:
        is_aligned = not shape.hidden_size * shape.dtype.itemsize % ALIGNMENT_BYTES
        return is_aligned and DispatchBackend.SYMMETRIC.value in winners(own, shape.num_ranks)
    return backend is DispatchBackend.SYMMETRIC
