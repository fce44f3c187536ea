"""The section about experts that are divided among ranks."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from raydix.moe.dispatch.transport import Transport
from raydix.runtime.config.dispatch import DispatchName
from raydix.runtime.config.policies import DispatchBackend, Overlap, Rebalance
from raydix.runtime.config.values import Choice, Count, Section


class ExpertsSection(Section):
    """Where experts are and how tokens reach them, if `parallel.ep` is more than 1."""

    dispatch: DispatchName = Field(
        DispatchBackend.AUTO,
        description="What carries them: `gloo` (through the host's memory); `nccl`; `symmetric` "
        "(kernels that write other GPUs' memory); `deepep`, a library of others; the name of an "
        "installed plugin, which docs/dispatch.md describes; or `auto`, the fastest that needs "
        "none of these.",
    )
    transport: Choice[Transport] = Field(
        Transport.AUTO,
        description="How rows travel to the ranks of their experts. auto: in the model's dtype. "
        "fp8: as float8 (e4m3) with a scale for each row and 128 numbers, about half the bytes of "
        "bfloat16; outputs come back as they are. Answers are those of rounded rows, and what is "
        "cached is kept apart from that of auto. The libraries of others, plugins included, carry "
        "none.",
    )
    overlap: Choice[Overlap] = Field(
        Overlap.AUTO,
        description="Whether steps with prompts are computed in two halves, so that one computes "
        "while the other's tokens travel. auto: those that gain by it, as is measured at the start "
        "on cuda; none on cpu. on: all that can be halved. Those of models whose layers keep "
        "states never are.",
    )
    host_store: bool = Field(
        True,
        description="Keep all experts in the node's memory, too: seats are filled from there when "
        "experts move and when ranks are made again. false: no rebalancing, and such ranks read "
        "the checkpoint again.",
    )
    rebalance: Choice[Rebalance] = Field(
        Rebalance.INCREMENTAL,
        description="How experts follow the demand for them. incremental: few moves, if they pay; "
        "deepseek: a new plan from scratch, however little it gains; none: they stay where they "
        "are.",
    )
    rebalance_interval_steps: Count = Field(
        1024, description="Steps from one look at the balance to the next."
    )
    load_interval_steps: Count = Field(
        64, description="Steps from one report of the demand for each expert to the next."
    )
    redundant_per_rank: Annotated[int, Field(ge=0)] = Field(
        0, description="Experts of each layer that a rank holds beyond its share."
    )
    spare_per_rank: Annotated[int, Field(ge=0)] = Field(
        1, description="Empty seats of each layer and rank, where moved experts land."
    )
    copies_per_step: Count = Field(
        2, description="Most experts that a rank starts to copy beside one step."
    )

    @property
    def dispatch_needs_gpus(self) -> bool:
        """Whether ranks without GPUs cannot use what `dispatch` names."""
        return self.dispatch not in (DispatchBackend.AUTO, DispatchBackend.GLOO)

    @model_validator(mode="after")
    def _rows_are_carried(self) -> Self:
        own = [each.value for each in DispatchBackend if each is not DispatchBackend.DEEPEP]
        if self.transport is Transport.FP8 and self.dispatch not in own:
            raise ValueError(
                f"experts.transport is fp8, and experts.dispatch {self.dispatch}, which carries "
                f"rows in the model's dtype alone; expected one of {', '.join(own)}. Set "
                "experts.dispatch to auto, or experts.transport to auto."
            )
        return self

    @model_validator(mode="after")
    def _rebalancing_has_what_it_needs(self) -> Self:
        if self.rebalance is Rebalance.NONE:
            return self
        if not self.host_store:
            raise ValueError(
                f"experts.rebalance {self.rebalance} copies experts from the host store, and "
                "experts.host_store is false. Set it to true, or experts.rebalance to none."
            )
        if not self.spare_per_rank:
            raise ValueError(
                f"experts.rebalance {self.rebalance} needs an empty seat to move experts to, and "
                "experts.spare_per_rank is 0. Set it to 1, or experts.rebalance to none."
            )
        return self
