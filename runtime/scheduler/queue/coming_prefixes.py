"""What a lane is about to compute or load, so that who shares it can go where it comes anyway."""

from collections.abc import Iterable, Sequence

from raydix.errors import AccountingError
from raydix.ids import PageKey, RequestId
from raydix.runtime.cache.page_key import KEY_BYTES
from raydix.runtime.scheduler.request.chain import Chain
from raydix.runtime.scheduler.request.request import RequestState


class ComingPrefixes:
    """Owns: by which keys the prompts of one lane that wait, or are computed, are found.

    A prompt is entered by the key of its first page, and those of its first 2, 4, 8, ... pages:
    they are few, however long it is. Keys are chained, so who has one of them has all before it.
    """

    def __init__(self) -> None:
        self._requests: dict[PageKey, dict[RequestId, RequestState]] = {}
        self._keys: dict[RequestId, list[PageKey]] = {}

    def add(self, request: RequestState) -> int:
        """Enter a prompt that is to come to L1, and may be the prefix of another.

        Returns with how many pages that come already it begins.
        """
        if request.must_score or request.request_id in self._keys:
            return 0
        keys = self._keys[request.request_id] = stop_keys(request.chain)
        num_pages = self._num_pages(request.chain, keys)
        for key in keys:
            self._requests.setdefault(key, {})[request.request_id] = request
        return num_pages

    def discard(self, request: RequestState) -> None:
        """Remove a prompt that has come to L1, or never will."""
        for key in self._keys.pop(request.request_id, ()):
            requests = self._requests[key]
            del requests[request.request_id]
            if not requests:
                del self._requests[key]

    def num_pages(self, request: RequestState) -> int:
        """The number of the prompt's leading pages that are about to come anyway."""
        if request.must_score or not self._requests:
            return 0
        return self._num_pages(request.chain, stop_keys(request.chain))

    def _num_pages(self, chain: Chain, keys: Sequence[PageKey]) -> int:
        """The pages shared with the newest prompt of those that share most of these keys."""
        newest: RequestState | None = None
        for key in keys:
            # Keys are chained: who lacks this one lacks all that follow.
            if (sharing := self._requests.get(key)) is None:
                break
            newest = next(reversed(sharing.values()))
        return 0 if newest is None else chain.num_shared_pages(newest.chain)

    def check(self, waiting: Iterable[RequestState], running: Iterable[RequestState]) -> None:
        """Raise AccountingError unless those that wait are entered, and none that is not here."""
        most = {request.request_id for request in waiting if not request.must_score}
        least = set(most)
        most.update(request.request_id for request in running)
        entered = {name for sharing in self._requests.values() for name in sharing}
        if not least <= self._keys.keys() <= most or not entered <= self._keys.keys():
            raise AccountingError(
                f"{len(self._keys)} prompts come to L1: {len(least)} wait, {len(most)} are here"
            )


def stop_keys(chain: Chain) -> list[PageKey]:
    """The keys of the last of the first 1, 2, 4, ... full pages of a prompt."""
    stops = [1 << bit for bit in range(chain.num_prompt_pages.bit_length())]
    keys = chain.keys(stops[-1]) if stops else b""
    return [PageKey(keys[(stop - 1) * KEY_BYTES : stop * KEY_BYTES]) for stop in stops]
