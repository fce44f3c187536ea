"""The part of every canonical page that one tensor-parallel rank keeps in its L1."""

from dataclasses import dataclass

from raydix.errors import ConfigError
from raydix.kernels.weights.rank_share import RankShare
from raydix.runtime.config.kv_layout import GroupKind, KvLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class KvShard:
    """What rank `rank` of `num_ranks` holds of each page of `layout`.

    Canonical pages are whole in the arena and in storage, whatever the number of ranks. Each rank
    keeps a run of kv heads of every layer. With fewer heads than ranks several ranks keep the same
    head, and the lowest of them writes it back.

    Latent pages are equal on all ranks, so these divide a transfer's latent pages among them: rank
    r copies those whose place in the transfer is r (mod `num_ranks`), whole, and of a load it sends
    them on to its peers.
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

    def is_shared(self, group: int) -> bool:
        """Whether pages of a group are equal on several ranks, which divide the copies."""
        return self.num_ranks > 1 and self.layout.groups[group].kind is GroupKind.LATENT

    def loaded_rows(self, group: int) -> slice:
        """Which of a load's pages of a group, in their order, this rank copies from L2 itself."""
        return slice(self.rank, None, self.num_ranks) if self.is_shared(group) else slice(None)

    def backed_up_rows(self, group: int) -> slice:
        """Which of a backup's pages of a group this rank writes: each byte comes from one rank."""
        if self.is_shared(group):
            return self.loaded_rows(group)
        ranks_per_head = max(1, self.num_ranks // self.layout.groups[group].num_kv_heads)
        return slice(None) if self.rank % ranks_per_head == 0 else slice(0)

    def page_bytes(self, group: int) -> int:
        """Bytes that one page of a group takes in this rank's L1."""
        kv_group = self.layout.groups[group]
        if kv_group.kind is GroupKind.STATE:
            return kv_group.state_bytes // kv_group.num_kv_heads * len(self.heads(group))
        per_head = self.layout.page_size * kv_group.head_dim * self.layout.dtype_bytes
        num_vectors = 1 if kv_group.kind is GroupKind.LATENT else 2
        return len(kv_group.layers) * len(self.heads(group)) * num_vectors * per_head

    @property
    def token_bytes(self) -> int:
        """Bytes of KV that one more token takes in all groups of this rank's L1."""
        growing = [
            self.page_bytes(index)
            for index, group in enumerate(self.layout.groups)
            if group.kind is not GroupKind.STATE
        ]
        return sum(growing) // self.layout.page_size

    @property
    def loaded_bytes(self) -> tuple[int, ...]:
        """Per group: bytes that this rank loads itself of each canonical page, on average."""
        return tuple(
            -(-len(group.layers) * len(self.byte_range(index)) // self._num_sharers(index))
            for index, group in enumerate(self.layout.groups)
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

    def _num_sharers(self, group: int) -> int:
        """Ranks that divide the copies of a group's pages among them."""
        return self.num_ranks if self.is_shared(group) else 1
