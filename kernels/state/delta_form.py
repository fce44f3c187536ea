"""The shapes of a layer that keeps a state: the gated delta rule. Imports no torch."""

from dataclasses import dataclass

CHUNK_TOKENS = 64
"""The most tokens that are computed at once: chunks end at its multiples, and where pages do."""
NORM_EPS = 1e-6
"""Added to the sum of squares by which queries and keys are normed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaForm:
    """The heads of one rank, and how wide they are.

    Channels are those of all query heads, then of all keys, then of all values. There are as many
    queries as keys; `values_per_key` value heads in a row share one key head.
    """

    num_key_heads: int
    values_per_key: int
    key_dim: int
    value_dim: int
    num_taps: int
    """The tokens that the causal convolution looks at, the current one among them."""

    @property
    def num_value_heads(self) -> int:
        """The value heads, each of which has a state of its own, [key_dim, value_dim]."""
        return self.num_key_heads * self.values_per_key

    @property
    def num_channels(self) -> int:
        """The channels of the convolution."""
        return self.num_key_heads * self.channels_per_head

    @property
    def channels_per_head(self) -> int:
        """The channels of a key head: its query, its key, and the values that share it."""
        return 2 * self.key_dim + self.values_per_key * self.value_dim

    @property
    def matrix_elements(self) -> int:
        """The numbers of the states of a key head."""
        return self.values_per_key * self.key_dim * self.value_dim

    @property
    def head_elements(self) -> int:
        """The numbers that a key head keeps: its states, then the last inputs of its channels."""
        return self.matrix_elements + self.channels_per_head * (self.num_taps - 1)
