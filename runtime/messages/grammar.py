"""Grammars: what a client asks for, and what GPU actors get of it.

A grammar says which texts an output may be. It is compiled once, for the vocabulary of the model,
and travels to the ranks of a lane with the plan that first needs it there.
"""

import hashlib
from dataclasses import dataclass
from enum import StrEnum

from raydix.ids import GrammarKey, TenantId
from raydix.runtime.messages.tenants import NO_TENANT

MAX_GRAMMAR_BYTES = 128 << 10
"""The longest text of a grammar, in UTF-8."""

TOOL_ARGUMENTS = "tool_arguments"
"""The type of a part of a structural tag that is our own: JSON of the arguments of a tool.

It has `tool`, the name, `json_schema`, `style`, and `is_strict`: whether it is refused if its
schema cannot be enforced, or may be any object then.
"""


class GrammarKind(StrEnum):
    """How the text of a grammar is written."""

    JSON_OBJECT = "json_object"
    """Any JSON object; the text is empty."""
    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    EBNF = "grammar"
    STRUCTURAL_TAG = "structural_tag"
    """The JSON of a structural tag of xgrammar: free text, and what has to follow in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grammar:
    """What an output has to be."""

    kind: GrammarKind
    text: str
    parameter: str = "structured_outputs"
    """What the caller calls it, by which a failure names it."""

    def key(self, tenant: TenantId = NO_TENANT) -> GrammarKey:
        """What names this content, of this tenant, and no other.

        What one tenant has had compiled comes no sooner to another one, who could tell from that.
        """
        own = "" if tenant == NO_TENANT else f"{tenant}\0"
        content = f"{own}{self.kind.value}\0{self.text}"
        return GrammarKey(hashlib.sha256(content.encode(errors="surrogatepass")).digest()[:16])


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledGrammar:
    """A grammar, compiled for the model's vocabulary."""

    key: GrammarKey
    content: bytes
    """What the compiler has written, which GPU actors alone read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GrammarChanges:
    """Which grammars the ranks of a lane keep from a plan on."""

    vocabulary: bytes | None
    """What tokens say, which grammars are read with; None: as told before, once for all."""
    compiled: tuple[CompiledGrammar, ...]
    dropped: tuple[GrammarKey, ...]
    """No request that is in a slot after this plan, and none that comes with it, goes by these."""
