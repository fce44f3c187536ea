"""The latest batches of one stream of events, for subscribers that have missed some."""

from collections import deque
from collections.abc import Iterator


class EventRing:
    """Owns: the numbers of a stream's batches, from 0 on, and the payloads of the latest ones."""

    def __init__(self, max_batches: int) -> None:
        """Keep so many batches at most."""
        self._payloads: deque[bytes] = deque(maxlen=max_batches)
        self.next_number = 0

    def add(self, payload: bytes) -> int:
        """Keep a batch; returns its number."""
        self._payloads.append(payload)
        self.next_number += 1
        return self.next_number - 1

    def since(self, number: int) -> Iterator[tuple[int, bytes]] | None:
        """The batches from this number on; None: some of them are not kept any more."""
        first = self.next_number - len(self._payloads)
        if number < first:
            return None
        numbers = range(max(number, first), self.next_number)
        return zip(numbers, [self._payloads[each - first] for each in numbers], strict=True)
