"""The logit rules, in the order in which they change logits: that of vLLM.

`NotFinite` has to see logits before others change them. Temperature, min-p, top-k, top-p and noise
come after all rules, in the sampler.
"""

from collections.abc import Sequence
from typing import Any

from raydix.runtime.model.logit_rules.biases import Biases
from raydix.runtime.model.logit_rules.min_tokens import MinTokens
from raydix.runtime.model.logit_rules.not_finite import NotFinite
from raydix.runtime.model.logit_rules.penalties import Penalties
from raydix.runtime.model.logit_rules.rule import LogitRule

LogitRules = Sequence[LogitRule[Any]]
LOGIT_RULES: LogitRules = (NotFinite(), MinTokens(), Biases(), Penalties())
