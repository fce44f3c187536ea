"""What a file of this folder says about its way of storing weights."""

from dataclasses import dataclass

from raydix.runtime.model.formats.restoring import Restorer, unchanged

FLOAT_DTYPES = ("F32", "BF16", "F16")


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFormat:
    """How a checkpoint stores weights, whatever its family."""

    quant_method: str | None
    """What `quantization_config` of config.json calls it; None: there is none."""
    weight_dtypes: tuple[str, ...] = FLOAT_DTYPES
    """What tensors called `weight` may be stored as, in the words of safetensors."""
    restore: Restorer = unchanged
    """Turns what is stored into floats, under the names that the family knows."""
    model_types: tuple[str, ...] | None = None
    """Families that are stored so, by the `model_type` of config.json; None: every family."""

    def may_store(self, model_type: str) -> bool:
        """Whether checkpoints of this family may be stored so."""
        return self.model_types is None or model_type in self.model_types
