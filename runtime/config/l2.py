"""The section of the configuration for L2."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from raydix.runtime.config.evictions import L2Eviction
from raydix.runtime.config.policies import EvictionPolicy
from raydix.runtime.config.pull import PullSection
from raydix.runtime.config.values import Seconds, Section, Size


class L2Section(Section):
    """The arena in each node's memory."""

    bytes_per_node: Size | None = Field(
        None, description="Size of the arena. Must be given on cuda."
    )
    floor_bytes: Size | None = Field(
        None,
        description="The least that this model's arena is made with, where other models have the "
        "rest of total_bytes_per_node. null: all of bytes_per_node.",
    )
    total_bytes_per_node: Size | None = Field(
        None,
        description="Most bytes of a node that the arenas of all models take together; where it "
        "differs, the least counts. Arenas that no engine uses give way. null: not bounded.",
    )
    ratio: Annotated[float, Field(gt=0.0)] | None = Field(
        None,
        description="cpu only: size of the arena as a multiple of the node's L1. "
        "Default on cpu: 4.0.",
    )
    eviction: L2Eviction = Field(
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

    @model_validator(mode="after")
    def _share_fits(self) -> Self:
        if self.floor_bytes is None:
            return self
        if self.total_bytes_per_node is None or self.bytes_per_node is None:
            raise ValueError(
                "cache.l2.floor_bytes is for arenas that share cache.l2.total_bytes_per_node, and "
                "goes below cache.l2.bytes_per_node. Set both, or cache.l2.floor_bytes to null."
            )
        if self.floor_bytes > self.bytes_per_node:
            raise ValueError(
                f"cache.l2.floor_bytes is {self.floor_bytes}, more than the {self.bytes_per_node} "
                "of cache.l2.bytes_per_node. Lower it, or raise cache.l2.bytes_per_node."
            )
        return self
