"""Which place served a session last, whose cache may hold its prompt."""

from collections import OrderedDict
from typing import Generic, TypeVar

_MAX_SESSIONS = 65_536
PlaceT = TypeVar("PlaceT")


class LastPlaces(Generic[PlaceT]):
    """Owns: the places of the sessions that were served of late."""

    def __init__(self) -> None:
        self._places: OrderedDict[str, PlaceT] = OrderedDict()

    def place_of(self, session_id: str | None) -> PlaceT | None:
        """The place that served a session last; None if that is not known."""
        return None if session_id is None else self._places.get(session_id)

    def forget(self, session_id: str) -> None:
        """Forget where a session was served."""
        self._places.pop(session_id, None)

    def remember(self, session_id: str, place: PlaceT) -> None:
        """Remember that a request of this session goes to a place."""
        self._places[session_id] = place
        self._places.move_to_end(session_id)
        while len(self._places) > _MAX_SESSIONS:
            self._places.popitem(last=False)
