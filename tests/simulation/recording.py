"""What a recording says of requests, beside what the Scheduler's core knows of them."""

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256

from raydix.runtime.cache.page_key import TOKEN_BYTES
from raydix.runtime.messages.recording import BLOCK_HASH_BYTES, RecordedRequest, RecordingPart
from raydix.runtime.scheduler import events
from raydix.runtime.scheduler.core import SchedulerCore
from raydix.runtime.scheduler.life.recorder import PATIENCE_S
from raydix.runtime.scheduler.request.request import RequestState

_NUM_KEPT = 3
"""The ended requests that are left in a recording before they are taken."""
_NUM_RECORDED = 12
"""The requests after which a recording ends, and another one begins."""
_NAME = "law"
Facts = tuple[object, ...]


class WrongRecording(AssertionError):
    """A recording tells of a request what it was not, or tells it twice or never."""


@dataclass(slots=True)
class Names:
    """Owns: which hash stands for which content, one for one."""

    hashes: dict[bytes, bytes] = field(default_factory=dict)
    contents: dict[bytes, bytes] = field(default_factory=dict)

    def agree(self, hashed: bytes, content: bytes) -> bool:
        """Whether a hash stands for this content alone, and nothing else does."""
        # A digest takes less room than a prompt.
        content = sha256(content).digest()
        is_known = self.contents.setdefault(hashed, content) == content
        return is_known and self.hashes.setdefault(content, hashed) == hashed


class RecordingLaw:
    """Owns: which requests a core's recording still has to tell of, and what its hashes stand for.

    One recording after the other runs as long as the core does.
    """

    def __init__(self, core: SchedulerCore) -> None:
        self._core = core
        self._page_size = core.settings.page_size
        self._living: list[RequestState] = []
        self._untold: list[tuple[RequestState, float]] = []
        """Requests that have ended, each with the time."""
        self._asked: deque[list[tuple[RequestState, float]]] = deque()
        """What each answer that is to come has to tell."""
        self._names = Names()
        self._is_running = False
        self._began_s = self._heard_s = 0.0
        self._num_told = 0

    def before_events(self, now_s: float) -> None:
        """Begin a recording if none runs."""
        if self._is_running and now_s - self._heard_s <= PATIENCE_S:
            return
        self._names, self._untold, self._num_told = Names(), [], 0
        begin = events.BeginRecording(name=_NAME, salt=bytes(32), block_tokens=None)
        self._order(begin, now_s)
        self._is_running, self._began_s, self._heard_s = True, now_s, now_s
        self._living = list(self._core._requests.living.values())

    def note_ends(self, now_s: float) -> None:
        """Note which requests have ended since this was called last."""
        living = self._core._requests.living
        for request in self._living:
            if living.get(request.request_id) is not request:
                self._note(request, now_s)
        self._living = list(living.values())

    def _note(self, request: RequestState, now_s: float) -> None:
        if request.admitted_s is not None and request.arrival_s >= self._began_s:
            self._untold.append((request, now_s))

    def before_decision(self, now_s: float) -> None:
        """Ask for what was recorded, or let the recording end, if it is time."""
        self.note_ends(now_s)
        if not self._is_running:
            return
        if self._num_told >= _NUM_RECORDED:
            for request in self._living:
                self._note(request, now_s)
            self._order(events.EndRecording(name=_NAME), now_s)
            self._is_running = False
        elif self._untold and (len(self._untold) > _NUM_KEPT or not self._living):
            self._order(events.TakeRecording(name=_NAME), now_s)

    def _order(self, order: events.Event, now_s: float) -> None:
        self._core.hear(order, now_s)
        self._num_told += len(self._untold)
        self._asked.append(self._untold)
        self._untold = []

    def hear(self, told: events.RecordingTold, now_s: float) -> None:
        """Raise WrongRecording unless a part tells all that is to be told, and nothing else."""
        part = told.part
        if part is None:
            raise WrongRecording(f"it is refused: {told.refusal}")
        self._heard_s = now_s
        self._compare(part)

    def _compare(self, part: RecordingPart) -> None:
        asked: dict[Facts, list[RequestState]] = defaultdict(list)
        for request, end_s in self._asked.popleft():
            asked[self._facts(request, end_s)].append(request)
        told: dict[Facts, list[RecordedRequest]] = defaultdict(list)
        for recorded in part.requests:
            told[_facts_told(recorded)].append(recorded)

        if _counts(told) != _counts(asked):
            raise WrongRecording(f"{_counts(told)} is told of {_counts(asked)}")
        for facts, requests in asked.items():
            # Of samples that end at once nobody can say which is which.
            if len(requests) == 1:
                self._compare_names(requests[0], told[facts][0])

    def _facts(self, request: RequestState, end_s: float) -> Facts:
        submit = request.submit
        return (
            request.arrival_s - self._began_s,
            end_s - self._began_s,
            request.num_prompt,
            request.num_output,
            submit.session_id is not None,
            submit.priority,
            submit.retention,
            len(_prompt_contents(request, self._page_size)),
            len(_answer_contents(request, self._page_size)),
        )

    def _compare_names(self, request: RequestState, recorded: RecordedRequest) -> None:
        """Raise WrongRecording unless equal hashes stand for equal contents."""
        pairs = [
            *zip(_split(recorded.blocks), _prompt_contents(request, self._page_size), strict=True),
            *zip(
                _split(recorded.answer_blocks),
                _answer_contents(request, self._page_size),
                strict=True,
            ),
        ]
        if recorded.session is not None:
            submit = request.submit
            pairs.append((recorded.session, repr((submit.cache_salt, submit.session_id)).encode()))
        if not all(self._names.agree(hashed, content) for hashed, content in pairs):
            raise WrongRecording(f"hashes of {request.request_id} stand for something else, too")


def _counts(requests: Mapping[Facts, Sequence[object]]) -> dict[Facts, int]:
    return {facts: len(each) for facts, each in requests.items()}


def _facts_told(recorded: RecordedRequest) -> Facts:
    return (
        recorded.arrival_s,
        recorded.end_s,
        recorded.num_prompt_tokens,
        recorded.num_answer_tokens,
        recorded.session is not None,
        recorded.priority,
        recorded.retention,
        len(recorded.blocks) // BLOCK_HASH_BYTES,
        len(recorded.answer_blocks) // BLOCK_HASH_BYTES,
    )


def _split(hashes: bytes) -> list[bytes]:
    width = BLOCK_HASH_BYTES
    return [hashes[at : at + width] for at in range(0, len(hashes), width)]


def _contents(request: RequestState, ends: Iterable[int]) -> list[bytes]:
    """All that comes before each of these ends of blocks, its tenant's name included."""
    chain = request.chain
    return [bytes(chain.identity) + chain.packed[: TOKEN_BYTES * end] for end in ends]


def _prompt_contents(request: RequestState, page_size: int) -> list[bytes]:
    num_tokens = request.num_prompt
    whole = _contents(request, range(page_size, num_tokens + 1, page_size))
    rest = _contents(request, [num_tokens]) if num_tokens % page_size else []
    return [*whole, *(b"not whole" + content for content in rest)]


def _answer_contents(request: RequestState, page_size: int) -> list[bytes]:
    first = (request.num_prompt // page_size + 1) * page_size
    # The last token of an answer is never computed.
    return _contents(request, range(first, request.chain.num_tokens, page_size))
