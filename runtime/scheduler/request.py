"""One request as the Scheduler sees it."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

import numpy as np

from raydix.ids import ClientId, PageKey, RequestId, Slot
from raydix.runtime.cache.page_key import TOKEN_BYTES, extend_keys, root_key
from raydix.runtime.cache.radix_tree import Lock
from raydix.runtime.messages.arrays import Int32Array
from raydix.runtime.messages.client import SubmitRequest
from raydix.runtime.messages.host import KEY_BYTES, MIRROR_KEY_BYTES, PageSource
from raydix.runtime.messages.plan import TokenLogprobs
from raydix.runtime.scheduler.prefetch import PrefetchState
from raydix.runtime.scheduler.transfers import Load

if TYPE_CHECKING:
    from raydix.runtime.scheduler.decodes import DecodeBatch

MAX_LOSSES = 2
"""A request that was running when so many ranks were lost, and has sampled nothing since, may be
what ends them: it runs beside no other such request, and one more loss is its end."""


class Phase(Enum):
    """Where a request stands."""

    WAITING = "waiting"
    """In a lane's queue: no page, no lock, no lease."""
    LEASING = "leasing"
    """Admitted; HostMemory was asked for the pages to load."""
    RUNNING = "running"
    """Admitted; may have a load in flight (`load`)."""
    ENDED = "ended"


@dataclass(slots=True)
class RowOutcome:
    """What one computed row means for its request. `token_ids`: the one that it sampled, if any."""

    num_computed: int
    token_ids: Int32Array
    logprobs: TokenLogprobs | None


class RequestState:
    """Owns: the progress of one request.

    Tokens are `num_prompt` prompt tokens, then the known output. `num_planned` tokens have their
    keys and values in plans that were sent, `num_computed` in plans that were acknowledged.
    `num_sampled` output tokens were planned; the last of them may be on the device only. While the
    request decodes, `DecodeBatch` keeps what changes by the step.
    """

    def __init__(
        self,
        submit: SubmitRequest,
        client_id: ClientId,
        *,
        serial: int,
        max_tokens: int,
        now_s: float,
    ) -> None:
        """`serial`: the engine never uses it twice, while request ids may come again."""
        self.submit = submit
        self.request_id: RequestId = submit.request_id
        self.serial = serial
        self.client_id = client_id
        self.arrival_s = now_s
        self.deadline_s = None if submit.deadline_s is None else now_s + submit.deadline_s
        self.max_tokens = max_tokens
        self.num_prompt = len(submit.token_ids)
        self.packed = bytearray(submit.token_ids.astype("<i4", copy=False).tobytes())
        self.identity: PageKey = root_key(cache_salt=submit.cache_salt)
        self.prefetch = PrefetchState()
        self.lane = 0
        self.phase = Phase.WAITING
        self.run = 0
        """Counts admissions: rows of an earlier run are ignored."""
        self.num_losses = 0
        """Ranks that were lost under it since its last token."""
        self.num_counted_pages = 0
        """Pages whose use by this request is counted on its lane; for `write_through_selective`
        only.
        """
        self.sources: dict[str, int] | None = None
        self.source_ranges: list[tuple[int, int, PageSource]] = []
        self.admitted_s: float | None = None
        self.first_token_s: float | None = None
        self.is_reported = False
        """The client has seen `sources`."""
        self._keys = bytearray()
        self._num_known = 0
        self._num_sampled = 0
        self._num_planned = 0
        self._num_computed = 0
        self.batch: DecodeBatch | None = None
        """The batch that it decodes with."""
        self._reset_run()

    def _reset_run(self) -> None:
        self.slot: Slot | None = None
        self.is_on_device = False
        self.lock: Lock | None = None
        self.table: list[int] = []
        self.num_table_sent = 0
        self._num_planned = 0
        self._num_computed = 0
        self._num_sampled = self._num_known
        self.write_start = 0
        self.load: Load | None = None
        self.deferred: list[RowOutcome] = []
        self.computing_key: PageKey | None = None

    def begin_run(self, slot: Slot, lock: Lock, table: list[int]) -> None:
        """Admitted: the request has a slot and holds the pages of `lock`, which `table` names."""
        self._reset_run()
        self.run += 1
        self.slot, self.lock, self.table = slot, lock, table

    def note_admission(self, now_s: float) -> None:
        """It was admitted; the first time counts as the end of its queueing."""
        if self.admitted_s is None:
            self.admitted_s = now_s

    def end_run(self, phase: Phase) -> None:
        """The request holds nothing any more; what it held was given back by the lane."""
        self._reset_run()
        self.run += 1
        self.phase = phase

    def forget_sources(self) -> None:
        """Its load brought nothing: where its prompt comes from is seen at its next admission,
        unless it was told.
        """
        if not self.is_reported:
            self.sources = None

    def join(self, batch: "DecodeBatch") -> None:
        """From now on `batch` keeps its progress."""
        self.batch = batch

    def leave(self, *, num_sampled: int) -> None:
        """It keeps its progress itself again; every known token has been handed over."""
        self.batch = None
        self._num_sampled = num_sampled
        self._num_planned = self.num_prompt + num_sampled - 1
        self._num_computed = self.num_prompt + self._num_known - 1

    def start_from(self, num_cached: int) -> None:
        """So many of its tokens have cached keys and values; the last known token is computed in
        any case.
        """
        self._num_planned = self._num_computed = min(num_cached, self.num_tokens - 1)
        self.write_start = num_cached

    def plan_row(self, num_tokens: int) -> int | None:
        """A row computes the next tokens. Returns the output position that it samples; None: it
        samples nothing.
        """
        self._num_planned += num_tokens
        if self._num_planned < self.num_target:
            return None
        self._num_sampled += 1
        return self._num_sampled - 1

    def row_computed(self, num_computed: int) -> None:
        """An acknowledged row has computed all tokens before this one."""
        self._num_computed = num_computed

    @property
    def num_output(self) -> int:
        """Known output tokens."""
        return self._num_known if self.batch is None else self.batch.num_known(self._place)

    @property
    def num_tokens(self) -> int:
        """Known tokens: prompt and output."""
        return self.num_prompt + self.num_output

    @property
    def num_sampled(self) -> int:
        """Output tokens that were planned."""
        return self._num_sampled if self.batch is None else self.batch.num_sampled(self._place)

    @property
    def num_planned(self) -> int:
        """Tokens whose keys and values are in plans that were sent. A decoding request lacks but
        its last one.
        """
        return self._num_planned if self.batch is None else self.num_target - 1

    @property
    def num_computed(self) -> int:
        """Tokens whose keys and values are in plans that were acknowledged."""
        return self._num_computed if self.batch is None else self.num_tokens - 1

    @property
    def _place(self) -> int:
        assert self.slot is not None, "who decodes has a slot"
        return self.slot

    @property
    def num_target(self) -> int:
        """Tokens that exist, here or on the device: what may be planned."""
        return self.num_prompt + self.num_sampled

    @property
    def num_to_plan(self) -> int:
        """Tokens that wait for computation; none once the last output token was planned."""
        return 0 if self.num_sampled >= self.max_tokens else self.num_target - self.num_planned

    @property
    def is_decoding(self) -> bool:
        """Its next row computes one token."""
        return self.num_target - self.num_planned == 1

    @property
    def num_held_pages(self) -> int:
        """Pages of the table that belong to the tree and are held by `lock`."""
        return 0 if self.lock is None else self.lock.num_pages

    def append_known(self, token_ids: Int32Array) -> None:
        """Sampled tokens became known."""
        self._num_known += len(token_ids)
        self.packed += token_ids.astype("<i4", copy=False).tobytes()

    def token_array(self) -> np.ndarray:
        """All known tokens, int32."""
        return np.frombuffer(bytes(self.packed), dtype=np.int32)

    @property
    def num_keys(self) -> int:
        """Full pages whose keys are known."""
        return len(self._keys) // KEY_BYTES

    def adopt_keys(self, keys: bytes) -> None:
        """Take the keys of the first pages from where they are known; only before any is hashed."""
        assert not self._keys, "keys are known already"
        self._keys += keys

    def extend_keys(self, num_pages: int, max_new: int, page_size: int) -> None:
        """Hash the keys of the first `num_pages` full pages, at most `max_new` new ones."""
        known = self.num_keys
        stop = min(num_pages, known + max_new)
        if known < stop:
            parent = PageKey(bytes(self._keys[-KEY_BYTES:])) if known else self.identity
            width = page_size * TOKEN_BYTES
            self._keys += extend_keys(
                parent, bytes(self.packed[known * width : stop * width]), page_size
            )

    def keys(self, num_pages: int, page_size: int) -> bytes:
        """Keys of the first `num_pages` full pages, hashing only what is new."""
        self.extend_keys(num_pages, num_pages, page_size)
        return bytes(self._keys[: num_pages * KEY_BYTES])

    def short_keys(self, pages: Iterable[int], page_size: int) -> list[bytes]:
        """As much of the keys of these full prompt pages as the mirror of L2 has."""
        keys = self.keys(self.num_prompt // page_size, page_size)
        return [keys[page * KEY_BYTES : page * KEY_BYTES + MIRROR_KEY_BYTES] for page in pages]

    def key(self, page: int, page_size: int) -> PageKey:
        """Key of one full page."""
        self.extend_keys(page + 1, page + 1, page_size)
        return PageKey(bytes(self._keys[page * KEY_BYTES : (page + 1) * KEY_BYTES]))
