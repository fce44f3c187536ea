"""How many tokens a rank may send to experts of other ranks, for which buffers are made."""

from dataclasses import dataclass

from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.model.steps.step_shapes import max_captured_tokens, padded_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class SentTokens:
    """The most tokens of a rank in a dispatch, as in `DispatchShape`."""

    most: int
    most_low_latency: int

    @classmethod
    def of(cls, config: EngineConfig, max_model_len: int, device: str) -> "SentTokens":
        """What a configured engine sends on a type of device. Only cuda captures steps."""
        tp, scheduler = config.parallel.tp, config.scheduler
        most = scheduler.max_step_tokens(max_model_len)
        if device != "cuda":
            return cls(most=-(-most // tp), most_low_latency=0)
        captured = max_captured_tokens(scheduler.max_running_requests)
        return cls(most=-(-padded_tokens(most) // tp), most_low_latency=-(-captured // tp))
