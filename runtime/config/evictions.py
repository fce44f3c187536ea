"""Which eviction policies a tier may have."""

from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

from raydix.runtime.config.policies import EvictionPolicy
from raydix.runtime.config.values import Choice

_TLRU = "only L1, whose policy is cache.eviction, knows the ends of conversations"
_REUSE = "only L1 and L2, by cache.eviction and cache.l2.eviction, learn that one"
NOT_OF_L2: Mapping[EvictionPolicy, str] = {EvictionPolicy.TLRU: _TLRU}
"""The policies that L2 may not have, and who may."""
NOT_OF_L3: Mapping[EvictionPolicy, str] = {
    EvictionPolicy.REUSE: _REUSE,
    EvictionPolicy.TLRU: _TLRU,
}
"""The policies that L3 may not have, and who may."""


def _is_of_l2(policy: EvictionPolicy) -> EvictionPolicy:
    return _refuse(policy, NOT_OF_L2)


def _is_of_l3(policy: EvictionPolicy) -> EvictionPolicy:
    return _refuse(policy, NOT_OF_L3)


def _refuse(policy: EvictionPolicy, refused: Mapping[EvictionPolicy, str]) -> EvictionPolicy:
    if policy in refused:
        others = ", ".join(each for each in EvictionPolicy if each not in refused)
        raise PydanticCustomError(
            "of_another_tier",
            "{who_may}; expected one of {others}",
            {"who_may": refused[policy], "others": others},
        )
    return policy


L2Eviction = Annotated[Choice[EvictionPolicy], AfterValidator(_is_of_l2)]
L3Eviction = Annotated[Choice[EvictionPolicy], AfterValidator(_is_of_l3)]
