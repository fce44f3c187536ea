"""Which eviction policies a tier may have."""

from typing import Annotated

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

from raydix.runtime.config.policies import EvictionPolicy
from raydix.runtime.config.values import Choice


def _is_unlearned(policy: EvictionPolicy) -> EvictionPolicy:
    if policy is EvictionPolicy.REUSE:
        others = ", ".join(each for each in EvictionPolicy if each is not policy)
        raise PydanticCustomError(
            "unlearned",
            "only L1, whose policy is cache.eviction, learns that one; expected one of {others}",
            {"others": others},
        )
    return policy


UnlearnedEviction = Annotated[Choice[EvictionPolicy], AfterValidator(_is_unlearned)]
"""The policy of a tier that sees pages, not the turns of sessions."""
