"""Which request ids a client's requests have, and what each of them stands for."""

import contextlib
from collections.abc import Iterator, Sequence

from raydix.errors import BadRequest
from raydix.ids import AskingId, RequestId


class RequestNames:
    """Owns: the request ids in use, and which of them are samples of one request.

    The id of several samples is in use as long as that of any of them.
    """

    def __init__(self) -> None:
        self._in_use: dict[RequestId, AskingId] = {}
        """The unanswered askings that the Scheduler was not told to end, by the request's id."""
        self._reserved: set[RequestId] = set()
        self._samples: dict[RequestId, Sequence[RequestId]] = {}
        """The ids of all samples of a request for several, by the first sample's id."""

    def require_free(self, request_id: RequestId) -> None:
        """Raise BadRequest if the id is in use."""
        ids = self._samples.get(request_id, (request_id,))
        if any(each in self._in_use or each in self._reserved for each in ids):
            raise BadRequest(
                f"request_id {request_id!r} is in use. Choose another one, or leave it out."
            )

    @contextlib.contextmanager
    def reserved(self, ids: Sequence[RequestId]) -> Iterator[None]:
        """Keep ids for a request that is about to be sent. Raises BadRequest if one is in use."""
        for each in ids:
            self.require_free(each)
        # Those that had the first one are over, though their caller may not know it yet.
        self._samples.pop(ids[0], None)
        self._reserved.update(ids)
        try:
            yield
        finally:
            self._reserved.difference_update(ids)

    @contextlib.contextmanager
    def together(self, ids: Sequence[RequestId]) -> Iterator[None]:
        """Meanwhile the first id stands for the samples of all."""
        self._samples[ids[0]] = ids
        try:
            yield
        finally:
            # By now it may be that of a later request.
            if self._samples.get(ids[0]) is ids:
                del self._samples[ids[0]]

    def use(self, request_id: RequestId, asking: AskingId) -> None:
        """Note that an asking with this id was sent."""
        self._in_use[request_id] = asking

    def release(self, request_id: RequestId, asking: AskingId) -> None:
        """Let a request have this id again, unless one that was asked later has it already."""
        if self.is_used_by(request_id, asking):
            del self._in_use[request_id]

    def is_in_use(self, request_id: RequestId) -> bool:
        """Whether a request with this id has not ended."""
        return request_id in self._in_use

    def is_used_by(self, request_id: RequestId, asking: AskingId) -> bool:
        """The id stands for this asking, not for a later one."""
        return self._in_use.get(request_id) == asking

    def askings_of(self, request_id: RequestId) -> list[tuple[RequestId, AskingId]]:
        """The askings that are to be ended with this id, by the ids of its samples."""
        ids = self._samples.get(request_id, (request_id,))
        return [(each, self._in_use[each]) for each in ids if each in self._in_use]
