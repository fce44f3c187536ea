"""The ranks with which a rank shares experts, and how it reaches them."""

from functools import partial
from pathlib import Path

import torch

from raydix.errors import ConfigError
from raydix.moe.dispatch.transport import Transport
from raydix.runtime.actors.gpu_model import RankPlace
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.model.checkpoint.checkpoint_config import read_checkpoint_config
from raydix.runtime.model.checkpoint.hub import settings_folder
from raydix.runtime.model.decoder.expert_ranks import ExpertRanks
from raydix.runtime.model.experts.dispatchers import connect_dispatcher
from raydix.runtime.model.steps.sent_tokens import SentTokens

_FLOAT8_CAPABILITY = (8, 9)
"""The least compute capability whose instructions convert to float8."""


def check_transport(transport: Transport, capability: tuple[int, int] | None) -> None:
    """Raise ConfigError if rows cannot travel so. capability: of the GPU; None: there is none."""
    if transport is Transport.FP8 and capability is not None and capability < _FLOAT8_CAPABILITY:
        raise ConfigError(
            f"experts.transport is fp8, but the GPU has compute capability "
            f"{'.'.join(map(str, capability))}; expected 8.9 or more, which knows float8. Set "
            "experts.transport to auto."
        )


def expert_ranks_of(
    config: EngineConfig, place: RankPlace, device: torch.device
) -> ExpertRanks | None:
    """The ranks that share experts; None if each lane has them to itself."""
    parallel = config.parallel
    if parallel.ep == 1:
        return None
    if place.meeting is None:
        raise ConfigError(
            f"rank {place.rank} of {parallel.ep} that share experts has no file to meet the others "
            "by; expected one in the engine's private folder."
        )

    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
    check_transport(config.experts.transport, capability)
    max_model_len = config.model.max_model_len
    if max_model_len is None:
        max_model_len = read_checkpoint_config(
            settings_folder(config.model.path)
        ).max_position_embeddings
    sent = SentTokens.of(config, max_model_len, device.type)
    return ExpertRanks(
        rank=place.rank % parallel.ep,
        size=parallel.ep,
        connect=partial(
            connect_dispatcher,
            config.experts.dispatch,
            Path(f"{place.meeting}-experts"),
            place.rank % parallel.ep,
            device=device,
        ),
        max_tokens=sent.most,
        max_low_latency_tokens=sent.most_low_latency,
        transport=config.experts.transport,
        redundant_per_rank=config.experts.redundant_per_rank,
        spare_seats=config.experts.spare_per_rank,
        memory=place.expert_memory,
    )
