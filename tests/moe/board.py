"""Where ranks that are threads of one process put what others of them take."""

import threading
from collections import Counter
from typing import Any


class Board:
    """All ranks post as often, in the same order; nobody goes on before all have posted."""

    def __init__(self, num_ranks: int) -> None:
        self._posts: dict[tuple[str, int], dict[int, Any]] = {}
        self._num_posts: Counter[tuple[str, int]] = Counter()
        self._num_ranks = num_ranks
        self._changed = threading.Condition()

    def post(self, subject: str, rank: int, value: Any) -> list[Any]:
        """What all ranks have posted under the subject this time, in their order."""
        with self._changed:
            number = self._num_posts[subject, rank]
            self._num_posts[subject, rank] += 1
            posts = self._posts.setdefault((subject, number), {})
            posts[rank] = value
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: len(posts) == self._num_ranks, timeout=60):
                raise TimeoutError(f"rank {rank} waits for others: {subject} {number}")
            return [posts[each] for each in range(self._num_ranks)]
