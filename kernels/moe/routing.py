"""How a router chooses the experts of a token, and how much each counts."""

from dataclasses import dataclass
from enum import StrEnum


class Scoring(StrEnum):
    """How logits of experts become scores, in float32."""

    SOFTMAX = "softmax"
    SIGMOID = "sigmoid"


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftmaxRouting:
    """Softmax over all experts, then the most likely ones."""

    renormalise: bool
    """Whether the weights of a token's experts are divided by their sum."""
    has_expert_scales: bool = False
    """Whether each expert has a factor of its own for its weight, after all else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLimitedRouting:
    """A token visits experts of its best groups alone (DeepSeek-V2, arXiv:2405.04434, 2.2.2).

    Experts are cut into `num_groups` equal runs. A correction bias, where there is one, is added to
    the scores that choose, not to those that weigh.
    """

    scoring: Scoring
    num_groups: int
    groups_per_token: int
    scores_per_group: int
    """The number of largest scores in a group whose sum is the group's own score."""
    renormalise: bool
    """Whether the weights of a token's experts are divided by their sum."""
    scale: float
    """The factor that multiplies the weights, after all else."""
    has_correction_bias: bool


Routing = SoftmaxRouting | GroupLimitedRouting
