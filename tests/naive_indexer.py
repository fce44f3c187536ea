"""An indexer of KV events that knows nothing of Raydix: it goes by the wire alone."""

from dataclasses import dataclass, field
from typing import Any

import msgspec

_MEDIA = {"GPU": "device", "CPU": "host", "STORAGE": "disk"}


@dataclass
class Overlap:
    """Leading blocks of a prompt, by the tier that they end in; each counts those before it."""

    device: int
    host: int
    disk: int


@dataclass
class NaiveIndexer:
    """Owns: the blocks of each medium, and of each block what it continues, by batches as sent."""

    held: dict[str, set[int]] = field(default_factory=lambda: {name: set() for name in _MEDIA})
    contents: dict[tuple[str | None, int | None, tuple[int, ...]], int] = field(
        default_factory=dict
    )
    """The block with these tokens behind this parent under this salt."""
    num_events: int = 0

    def take(self, payload: bytes) -> None:
        """Follow a batch; raises AssertionError if it tells of a block twice, or of none."""
        _, events, _ = msgspec.msgpack.decode(payload)
        for event in events:
            self.num_events += 1
            match event["type"]:
                case "BlockStored":
                    self._store(event)
                case "BlockRemoved":
                    held, gone = self.held[event["medium"]], set(event["block_hashes"])
                    assert gone <= held, f"{len(gone - held)} blocks are removed that are not there"
                    held -= gone
                case "AllBlocksCleared":
                    for held in self.held.values():
                        held.clear()

    def _store(self, event: dict[str, Any]) -> None:
        hashes, size = event["block_hashes"], event["block_size"]
        held = self.held[event["medium"]]
        assert not held & set(hashes), "blocks are stored that are there already"
        assert len(event["token_ids"]) == size * len(hashes)
        held |= set(hashes)
        parent, salt = event["parent_block_hash"], event.get("cache_salt")
        extra = event.get("extra_keys")
        assert (extra is not None) == (salt is not None and parent is None)
        assert extra is None or extra == [[salt], *[None] * (len(hashes) - 1)]
        for number, block in enumerate(hashes):
            tokens = tuple(event["token_ids"][number * size : (number + 1) * size])
            self.contents[salt, parent, tokens] = block
            parent = block

    def overlap(self, prompt: list[int], size: int, salt: str | None) -> Overlap:
        """Find how much of a prompt is there: in GPU, then on in CPU, then on in STORAGE."""
        chain: list[int] = []
        parent = None
        for start in range(0, len(prompt) - size + 1, size):
            parent = self.contents.get((salt, parent, tuple(prompt[start : start + size])))
            if parent is None:
                break
            chain.append(parent)
        ends, end = [], 0
        for medium in _MEDIA:
            while end < len(chain) and chain[end] in self.held[medium]:
                end += 1
            ends.append(end)
        return Overlap(*ends)
