"""Where the prompts of recent requests came from."""

from collections import OrderedDict
from typing import Any

from raydix.ids import RequestId
from raydix.runtime.scheduler.request.request import RequestState

_NUM_EXPLAINED = 1024


class Explanations:
    """Owns: what can be told of the requests that ended last."""

    def __init__(self) -> None:
        self._explained: OrderedDict[RequestId, dict[str, Any]] = OrderedDict()

    def find(self, request_id: RequestId) -> dict[str, Any] | None:
        """Find where a request's prompt came from, by token range; None if unknown."""
        return self._explained.get(request_id)

    def add(self, request: RequestState) -> None:
        """Keep the explanation of a request that has ended."""
        self._explained[request.request_id] = {
            "prompt_tokens": request.num_prompt,
            "output_tokens": request.num_output,
            "cached_tokens_by_source": request.sources or {},
            "ranges": [
                {"start": start, "end": end, "source": source.label}
                for start, end, source in request.source_ranges
            ],
        }
        while len(self._explained) > _NUM_EXPLAINED:
            self._explained.popitem(last=False)
