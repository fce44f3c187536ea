"""The grammar that a request goes by, and whether it is there."""

from raydix.ids import GrammarKey
from raydix.runtime.messages.grammar import CompiledGrammar, Grammar
from raydix.runtime.messages.tenants import tenant_of


class GrammarNeed:
    """Owns: the compiled grammar of a request, once there is one."""

    def __init__(self, asked: Grammar | None, cache_salt: str | None = None) -> None:
        self.asked = asked
        self.key: GrammarKey | None = None if asked is None else asked.key(tenant_of(cache_salt))
        """What names the grammar; None: the request goes by none."""
        self.compiled: CompiledGrammar | None = None
        self.vocabulary = b""
        """What `compiled` is read with."""

    @property
    def is_missing(self) -> bool:
        """Whether the request goes by a grammar that is not compiled yet."""
        return self.key is not None and self.compiled is None

    def take(self, compiled: CompiledGrammar, vocabulary: bytes) -> None:
        """Take the compiled grammar."""
        self.compiled, self.vocabulary = compiled, vocabulary
