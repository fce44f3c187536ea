"""Which part of everything that tensor parallelism divides is one rank's. Imports no torch."""

from dataclasses import dataclass

from raydix.errors import ConfigError


@dataclass(frozen=True, slots=True)
class RankShare:
    """Part `rank` of `size` equal parts."""

    rank: int = 0
    size: int = 1

    def length(self, total: int) -> int:
        """The length of each rank's part of `total` rows; the last parts may pass the end."""
        return -(-total // self.size)

    def heads(self, num_heads: int) -> range:
        """This rank's query heads. Raises ConfigError if they cannot be divided evenly."""
        if num_heads % self.size:
            raise ConfigError(
                f"parallel.tp is {self.size}; {num_heads} query heads cannot be divided among so "
                f"many ranks. Set parallel.tp to a divisor of {num_heads}."
            )
        count = num_heads // self.size
        return range(self.rank * count, (self.rank + 1) * count)

    def kv_heads(self, num_heads: int) -> range:
        """This rank's KV heads, those of its query heads; with too few, several ranks keep one.

        Raises ConfigError if they cannot be divided evenly.
        """
        if num_heads % self.size and self.size % num_heads:
            raise ConfigError(
                f"parallel.tp is {self.size}; {num_heads} kv heads cannot be divided among so many "
                f"ranks. Set parallel.tp to a divisor or a multiple of {num_heads}."
            )
        first = self.rank * num_heads // self.size
        return range(first, first + max(1, num_heads // self.size))
