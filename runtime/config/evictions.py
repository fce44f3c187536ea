"""Which eviction policies a tier may have."""

from typing import Annotated

from pydantic import AfterValidator

from raydix.runtime.config.policies import EvictionPolicy
from raydix.runtime.config.values import Choice


def _is_unlearned(policy: EvictionPolicy) -> EvictionPolicy:
    if policy is EvictionPolicy.REUSE:
        others = ", ".join(each for each in EvictionPolicy if each is not policy)
        raise ValueError(
            f"eviction is reuse, which only L1 learns; expected one of {others}. "
            "Set cache.eviction to reuse instead."
        )
    return policy


UnlearnedEviction = Annotated[Choice[EvictionPolicy], AfterValidator(_is_unlearned)]
"""The policy of a tier that sees pages, not the turns of sessions."""
