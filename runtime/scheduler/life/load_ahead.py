"""What has come from L3 for a request that waits for more goes on to L1."""

from raydix.runtime.cache.radix_tree import Lock
from raydix.runtime.scheduler.life.admission import WaitForPages
from raydix.runtime.scheduler.life.load_choice import LoadChoice
from raydix.runtime.scheduler.life.room import hold
from raydix.runtime.scheduler.life.transitions import Transitions
from raydix.runtime.scheduler.ranks.lane import Lane
from raydix.runtime.scheduler.request.request import RequestState
from raydix.runtime.scheduler.settings import SchedulerSettings
from raydix.runtime.scheduler.sources.cached_prefix import CachedPrefix
from raydix.runtime.scheduler.timers import Timers


class LoadAhead:
    """Lets requests wait for their pages, and loads ahead what has come."""

    def __init__(
        self, settings: SchedulerSettings, *, choice: LoadChoice, life: Transitions, timers: Timers
    ) -> None:
        self._settings = settings
        self._choice = choice
        self._life = life
        self._timers = timers

    def wait(self, lane: Lane, request: RequestState, wait: WaitForPages, now_s: float) -> bool:
        """Let a request that has room wait for its pages; what has come is loaded ahead.

        False: it has no room, so no other request may overtake it.
        """
        held = hold(lane, request, wait.found, now_s)
        if held is None:
            return False
        request.prefetch.note_runnable(now_s)
        # It is looked at again when it waits no longer.
        if wait.until_s is not None and request.prefetch.set_alarm(wait.until_s, now_s):
            self._timers.add(wait.until_s, request.ticket)
        return self._park(lane, request, wait.found.prefix, held.lock, now_s)

    def _park(
        self, lane: Lane, request: RequestState, prefix: CachedPrefix, lock: Lock, now_s: float
    ) -> bool:
        """Park a request until its pages from L3 have come; what has come is loaded ahead.

        False: a prompt that goes through L2 by turns lacks pages of L1, and no other request may
        overtake it.
        """
        is_halted = request.prefetch.is_halted
        has_more_room = self._load_ahead(lane, request, prefix, lock, now_s)

        if is_halted and not lane.promotions.has_part(request):
            if has_more_room:
                return False
            num_ahead = self._num_ahead(prefix)
            if num_ahead or not self._look_up_rest(lane, request, prefix.match.num_pages):
                # It is looked at again at once, and runs.
                request.prefetch.give_up_turns()
                return True
        lacks = lane.waiting.prompt_key(request, prefix.num_pages)
        lane.waiting.park(request, lacks=lacks)
        return True

    def _num_ahead(self, prefix: CachedPrefix) -> int:
        """The pages of L2, in groups that see everything, which can be loaded ahead of the rest."""
        num_pages = prefix.num_known_pages - min(prefix.match.num_pages, prefix.num_known_pages)
        return num_pages if self._settings.has_full else 0

    def _load_ahead(
        self, lane: Lane, request: RequestState, prefix: CachedPrefix, lock: Lock, now_s: float
    ) -> bool:
        """Load what has come for a request whose match is locked; else the lock goes back.

        Returns whether a prompt that goes through L2 by turns has room in L1 to come.
        """
        settings, is_halted = self._settings, request.prefetch.is_halted
        start = min(prefix.match.num_pages, prefix.num_known_pages)
        num_pages = self._num_ahead(prefix)
        # What goes through L2 by turns is loaded as a whole, or not at all.
        num_reusable = settings.reusable_pages(request.num_prompt)
        num_weighed = num_reusable - start if is_halted else num_pages
        num_loaded = [num_weighed if reach is None else 0 for reach in settings.reaches]
        num_bytes = settings.bytes_of(num_loaded)
        if not num_pages or not self._choice.is_load_cheaper(num_bytes, num_weighed, now_s):
            lane.l1.withdraw(lock)
            return False

        if lock.num_pages < start:
            # Windows end before: what sees everything goes on where its path in L1 does.
            lane.l1.withdraw(lock)
            lock = lane.l1.lock(prefix.match, start, now_s=now_s)
        is_promoted = self._life.promote(lane, request, lock, num_pages)
        has_more_room = is_halted and lane.promotions.num_left(request, lock) > 0
        if not is_promoted:
            lane.l1.withdraw(lock)
        return has_more_room

    def _look_up_rest(self, lane: Lane, request: RequestState, num_l1_pages: int) -> bool:
        """Once all that had come is in L1, look up the rest; False if nothing had come."""
        if num_l1_pages <= request.prefetch.num_l1_pages:
            return False
        self._life.look_up_refused(lane, request)
        return True
