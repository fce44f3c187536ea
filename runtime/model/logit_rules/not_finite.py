"""A row that holds NaN or +inf gets no token, whatever other rules make of it.

Its numbers say nothing. The sampler finds that out by itself, at no cost, in rows that no rule
concerns; but a mask over the only number that is bad would hide it from the sampler.

Legend: B rows of a block, V vocabulary.
"""

from collections.abc import Mapping

from torch import Tensor

from raydix.runtime.messages.plan import DeviceSampling
from raydix.runtime.model.logit_rules.rule import Asked, Block, BlockTokens
from raydix.runtime.model.staging.columns import Columns


class NotFinite:
    """A `LogitRule` that makes such a row's logits NaN. No request asks for it."""

    def read(self, sampling: DeviceSampling) -> Asked[None] | None:
        """Return nothing: no request asks for this rule."""
        return None

    def columns(self, block: Block[None]) -> Columns | None:
        """Answer that the rule looks at every row of every block."""
        return {}

    def apply(
        self, logits_BV: Tensor, columns: Mapping[str, Tensor], tokens: BlockTokens
    ) -> Tensor:
        """Make every logit of a row NaN that has one which is NaN or plus infinity."""
        # NaN is not less than infinity. A row of -inf alone is left to the sampler.
        is_bad_B1 = (logits_BV < float("inf")).all(-1, keepdim=True).logical_not()
        return logits_BV.masked_fill_(is_bad_B1, float("nan"))

    def example(self, sampling: DeviceSampling) -> DeviceSampling:
        """The same parameters: any request that asks another rule is an example."""
        return sampling
