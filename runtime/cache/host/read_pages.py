"""What is known of pages of L2 while somebody reads them, when they are in no run."""

from array import array
from collections.abc import Sequence

import numpy as np

from raydix.ids import SEVERAL_USERS, UserId
from raydix.runtime.cache.host.lru_lists import Items, view_of
from raydix.runtime.cache.host.page_run import PageRun


class ReadPages:
    """Owns: who alone uses each page that is out of its run while it is read, its kind and turn."""

    def __init__(self, num_pages: int) -> None:
        self._owner_of = array("q", bytes(8 * num_pages))
        """0: several users, or none."""
        self._all_owner_of = view_of(self._owner_of, np.int64)
        self._kind_of = array("b", bytes(num_pages))
        self._turn_of = array("b", bytes(num_pages))
        self._all_kind_of = view_of(self._kind_of, np.int8)
        self._all_turn_of = view_of(self._turn_of, np.int8)

    def add(self, page: int, run: PageRun) -> None:
        """Note that a page leaves its run to be read."""
        self._owner_of[page] = run.user or SEVERAL_USERS
        self._kind_of[page], self._turn_of[page] = run.kind, run.turn

    def add_all(self, pages: Items, runs: Sequence[PageRun], places: Items) -> None:
        """Note that pages leave their runs to be read; `places`: which run each page leaves."""
        owners = np.array([run.user or SEVERAL_USERS for run in runs], dtype=np.int64)
        self._all_owner_of[pages] = owners[places]
        self._all_kind_of[pages] = np.array([run.kind for run in runs], dtype=np.int8)[places]
        self._all_turn_of[pages] = np.array([run.turn for run in runs], dtype=np.int8)[places]

    def take(self, page: int) -> tuple[UserId, int, int]:
        """Return whose a page is that nobody reads any more, its kind and its turn."""
        owner = UserId(self._owner_of[page])
        self._owner_of[page] = SEVERAL_USERS
        return owner, self._kind_of[page], self._turn_of[page]

    def last_turn(self, pages: Items) -> int:
        """The last turn of pages that are being read; -1: there are none."""
        return int(self._all_turn_of[pages].max(initial=-1))

    def use(self, pages: Items, kind: int) -> None:
        """Note what a use makes of pages that are being read."""
        self._all_kind_of[pages] = kind
