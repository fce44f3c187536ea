"""The section of the configuration for L2."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from raydix.runtime.config.policies import EvictionPolicy
from raydix.runtime.config.pull import PullSection
from raydix.runtime.config.values import Choice, Seconds, Section, Size


class L2Section(Section):
    """The arena in each node's memory."""

    bytes_per_node: Size | None = Field(
        None, description="Size of the arena. Must be given on cuda."
    )
    ratio: Annotated[float, Field(gt=0.0)] | None = Field(
        None,
        description="cpu only: size of the arena as a multiple of the node's L1. "
        "Default on cpu: 4.0.",
    )
    eviction: Choice[EvictionPolicy] = Field(
        EvictionPolicy.LRU, description="Which pages leave the arena first."
    )
    pull: PullSection | None = Field(
        None,
        description="Exchange pages with other nodes of the Ray cluster that serve the same model: "
        "`pull: {}` turns it on. null: this node keeps to itself.",
    )
    shared: bool = Field(
        True,
        description="Engines of the same weights on one node of a Ray cluster share one arena, "
        "which outlives them. false: this engine has one of its own, which ends with it.",
    )
    keep_s: Seconds = Field(
        600.0,
        description="How long a shared arena stays, once the last engine that used it has ended.",
    )

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if (self.bytes_per_node is None) == (self.ratio is None):
            raise ValueError(
                "cache.l2 needs exactly one of bytes_per_node and ratio. Set the other to null."
            )
        return self
