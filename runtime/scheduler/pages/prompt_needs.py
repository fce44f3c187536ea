"""Pages that the prompts which run on a lane still lack."""

from collections.abc import Iterable

from raydix.errors import AccountingError
from raydix.ids import RequestId
from raydix.runtime.scheduler.request.request import RequestState


class PromptNeeds:
    """Owns: how many pages each request that does not decode yet needs beyond its block table.

    With so many all its known tokens have a place. They are kept, as they are asked for with each
    request that is admitted and each chunk.
    """

    def __init__(self, page_size: int) -> None:
        self._page_size = page_size
        self._needs: dict[RequestId, int] = {}

    def all(self) -> list[int]:
        """The pages that each of the requests needs."""
        return list(self._needs.values())

    def note(self, request: RequestState) -> None:
        """Note that a request has come, or that its tokens or its table have changed."""
        self._needs[request.request_id] = self._num_lacking(request)

    def forget(self, request: RequestState) -> None:
        """Forget a request that decodes now, or runs no more."""
        self._needs.pop(request.request_id, None)

    def check(self, requests: Iterable[RequestState], figures: str) -> None:
        """Raise AccountingError unless these requests need what is counted."""
        needs = {request.request_id: self._num_lacking(request) for request in requests}
        if needs != self._needs:
            raise AccountingError(
                f"prompts need {sum(needs.values())} pages, {sum(self._needs.values())} are "
                f"counted: {figures}"
            )

    def _num_lacking(self, request: RequestState) -> int:
        return max(0, -(-request.num_target // self._page_size) - len(request.table))
