"""Which lane served a session last, whose L1 may hold its prompt."""

from collections import OrderedDict

_MAX_SESSIONS = 65_536


class Sessions:
    """Owns: the lanes of the sessions that were served of late."""

    def __init__(self) -> None:
        self._lanes: OrderedDict[str, int] = OrderedDict()

    def lane_of(self, session_id: str | None) -> int | None:
        """The lane that served a session last; None if that is not known."""
        return None if session_id is None else self._lanes.get(session_id)

    def remember(self, session_id: str, lane: int) -> None:
        """Remember that a request of this session goes to a lane."""
        self._lanes[session_id] = lane
        self._lanes.move_to_end(session_id)
        while len(self._lanes) > _MAX_SESSIONS:
            self._lanes.popitem(last=False)
