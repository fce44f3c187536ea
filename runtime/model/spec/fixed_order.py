"""Which models can be computed in an order that depends on nothing but the row."""

from raydix.errors import ConfigError
from raydix.kernels.moe.routing import GroupLimitedRouting
from raydix.runtime.model.spec.spec import (
    GatedDeltaSpec,
    LatentAttentionSpec,
    LayerSpec,
    ModelSpec,
    MoeMlpSpec,
)

MAX_HEAD_DIM = 256
"""The widest heads that attention of a fixed order knows."""


def require_fixed_order(spec: ModelSpec) -> None:
    """Raise ConfigError, naming what is in the way, unless `spec` can be computed so."""
    obstacle = next(filter(None, map(_obstacle, spec.layers)), None)
    if obstacle is not None:
        raise ConfigError(
            f"model.deterministic is on, and the model has {obstacle}, which is not computed in a "
            "fixed order. Leave model.deterministic off."
        )


def _obstacle(layer: LayerSpec) -> str | None:
    attention = layer.attention
    if isinstance(attention, LatentAttentionSpec):
        return "latent attention, whose prompts and decodes are different products"
    if isinstance(attention, GatedDeltaSpec):
        return "layers that keep a state, whose prompts are computed in blocks"
    if attention.head_dim > MAX_HEAD_DIM:
        return f"heads that are {attention.head_dim} wide, of at most {MAX_HEAD_DIM}"
    if isinstance(layer.mlp, MoeMlpSpec) and isinstance(layer.mlp.routing, GroupLimitedRouting):
        return "a router that chooses among groups of experts or by corrected scores"
    return None
