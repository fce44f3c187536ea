"""Trying a way that is believed to be dearer, now and then, so that the belief can be refuted.

Of two ways to the same thing the cheaper one is taken, and then that one alone is observed: a
belief that the other is dear would decide that it is never tested again. So the dearer way is
tried, with as much of the work as may be paid for: trials cost at most `_SHARE` of the time. One
that is as dear as believed has cost no more than that; one that is cheaper corrects the belief.
"""

import math

from raydix.ids import LeaseId

_SHARE = 0.01
"""The part of the time that trials may cost beyond the cheaper way."""
_MAX_COST_S = 0.05
"""The most seconds that a trial may cost if it tries more pages than must be tried together,
however long there was none: a single request waits for it.
"""


class Trials:
    """Owns: when the dearer of two ways was tried last, and what that has cost beyond its share."""

    def __init__(self) -> None:
        self._paid_s = -math.inf
        """The time from which on the passing of time pays for the next trial."""
        self._open: tuple[LeaseId, float] | None = None
        """The lease of the load that is a trial, and its expected seconds. No other load has this
        lease, while a later request may have the name of this one.
        """

    def affordable_s(self, now_s: float) -> float:
        """The seconds that a trial may cost now: `_SHARE` of the time since the last one."""
        return _SHARE * max(0.0, now_s - self._paid_s)

    def begin(self, lease_id: LeaseId | None, expected_s: float, now_s: float) -> None:
        """Begin a trial of the dearer way, for which there is enough time since the last one.

        `lease_id`: by which it loads; None: it computes all.
        """
        self._paid_s = now_s
        self._open = None if lease_id is None else (lease_id, expected_s)

    def note_load(self, lease_id: LeaseId, seconds: float) -> None:
        """Note how long a load took: if it is a trial, its surplus is paid, too."""
        if self._open is not None and self._open[0] == lease_id:
            self._paid_s += max(0.0, seconds - self._open[1]) / _SHARE
            self._open = None


def num_affordable(num_pages: int, page_s: float, affordable_s: float) -> int:
    """The number of pages that may be tried if each costs `page_s` more."""
    if page_s <= 0.0:
        return num_pages
    return int(min(num_pages, affordable_s / page_s))


def num_soon_done(num_pages: int, page_s: float) -> int:
    """The number of affordable pages to try: what is soon done, but one at least."""
    if page_s <= 0.0:
        return num_pages
    return min(num_pages, max(1, int(_MAX_COST_S / page_s)))
