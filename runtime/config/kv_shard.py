"""The part of every canonical page that one tensor-parallel rank keeps in its L1."""

from dataclasses import dataclass

from raydix.errors import ConfigError
from raydix.kernels.rank_share import RankShare
from raydix.runtime.config.kv_layout import GroupKind, KvLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class KvShard:
    """What rank `rank` of `num_ranks` holds of each page of `layout`.

    Canonical pages are whole in the arena and in storage, whatever the number of ranks. Each rank
    keeps a run of kv heads of every layer. With fewer heads than ranks several ranks keep the same
    head, and the lowest of them writes it back. Latent pages are whole on every rank, and rank 0
    writes them back.
    """

    layout: KvLayout
    rank: int = 0
    num_ranks: int = 1

    def __post_init__(self) -> None:
        """Raises ConfigError if the heads of a group cannot be divided among the ranks."""
        if not 0 <= self.rank < self.num_ranks:
            raise ConfigError(
                f"rank {self.rank} of {self.num_ranks}; expected 0..{self.num_ranks - 1}."
            )
        for group in range(len(self.layout.groups)):
            self.heads(group)

    def heads(self, group: int) -> range:
        """The kv heads of a group that this rank keeps; a latent page counts as one head."""
        kv_group = self.layout.groups[group]
        if kv_group.kind is GroupKind.LATENT:
            return range(1)
        return RankShare(self.rank, self.num_ranks).kv_heads(kv_group.num_kv_heads)

    def is_writer(self, group: int) -> bool:
        """Whether this rank writes its heads of a group back to L2: no lower rank keeps them."""
        if self.layout.groups[group].kind is GroupKind.LATENT:
            return self.rank == 0
        ranks_per_head = max(1, self.num_ranks // self.layout.groups[group].num_kv_heads)
        return self.rank % ranks_per_head == 0

    def page_bytes(self, group: int) -> int:
        """Bytes that one page of a group takes in this rank's L1."""
        kv_group = self.layout.groups[group]
        per_head = self.layout.page_size * kv_group.head_dim * self.layout.dtype_bytes
        num_vectors = 1 if kv_group.kind is GroupKind.LATENT else 2
        return len(kv_group.layers) * len(self.heads(group)) * num_vectors * per_head

    @property
    def token_bytes(self) -> int:
        """Bytes of KV that one token takes in all groups of this rank's L1."""
        groups = range(len(self.layout.groups))
        return sum(self.page_bytes(group) for group in groups) // self.layout.page_size

    @property
    def loaded_bytes(self) -> tuple[int, ...]:
        """Per group: bytes of a canonical page that this rank loads."""
        groups = range(len(self.layout.groups))
        return tuple(
            len(self.layout.groups[group].layers) * len(self.byte_range(group)) for group in groups
        )

    def layer_bytes(self, group: int) -> int:
        """Bytes of one layer in the canonical page, with the heads of all ranks."""
        return self.layout.payload_bytes(group) // len(self.layout.groups[group].layers)

    def byte_range(self, group: int) -> range:
        """Where this rank's heads lie within one layer of the canonical page, in bytes."""
        kv_group = self.layout.groups[group]
        num_heads = 1 if kv_group.kind is GroupKind.LATENT else kv_group.num_kv_heads
        head_bytes = self.layer_bytes(group) // num_heads
        heads = self.heads(group)
        return range(heads.start * head_bytes, heads.stop * head_bytes)
