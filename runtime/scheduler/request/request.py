"""One request as the Scheduler sees it."""

import bisect
from collections.abc import Sequence
from dataclasses import replace

from raydix.errors import AccountingError
from raydix.ids import ClientId, RequestId, Slot
from raydix.runtime.cache.radix_tree import Lock
from raydix.runtime.messages.arrays import Int32Array
from raydix.runtime.messages.client import SubmitRequest
from raydix.runtime.messages.host import PageSource
from raydix.runtime.messages.plan import AddedRequest, PromptLogprobs
from raydix.runtime.scheduler.request.block_table import BlockTable
from raydix.runtime.scheduler.request.chain import Chain
from raydix.runtime.scheduler.request.decode_progress import DecodeProgress
from raydix.runtime.scheduler.request.grammar_need import GrammarNeed
from raydix.runtime.scheduler.request.prefetch import PrefetchState
from raydix.runtime.scheduler.request.run import NOWHERE, RowOutcome, Start
from raydix.runtime.scheduler.request.state import State, require_move
from raydix.runtime.scheduler.request.transfers import Load

MAX_LOSSES = 2
"""Ranks that may be lost under a request between two of its tokens. After so many it may be what
ends them: it runs beside no other such request, and one more loss is its end.
"""


class RequestState:
    """Owns: the progress of one request.

    Tokens are `num_prompt` prompt tokens, then the known output. `num_planned` tokens have their
    keys and values in plans that were sent, `num_computed` in plans that were acknowledged.
    `num_sampled` output tokens were planned; the last of them may be on the device only.

    While the request decodes, `DecodeBatch` owns `num_sampled` and `num_output`, and `chain` gets
    the tokens several at a time. The others follow: of the tokens that exist all but the last are
    planned, of the known ones all but the last are computed.
    """

    def __init__(
        self,
        submit: SubmitRequest,
        client_id: ClientId,
        *,
        serial: int,
        max_tokens: int,
        page_size: int,
        now_s: float,
    ) -> None:
        """Take in a request. `serial` is never used twice, while request ids may come again."""
        self.submit = submit
        self.request_id: RequestId = submit.request_id
        self.serial = serial
        self.client_id = client_id
        self.arrival_s = now_s
        self.deadline_s = None if submit.deadline_s is None else now_s + submit.deadline_s
        most = len(submit.earlier_output) + 1 if submit.goes_on_elsewhere else max_tokens
        self.max_tokens, self.is_handed_over = min(most, max_tokens), most < max_tokens
        self.chain = Chain(submit.token_ids, cache_salt=submit.cache_salt, page_size=page_size)
        self.chain.append(submit.earlier_output)
        self.num_prompt = self.chain.num_prompt
        self.prefetch = PrefetchState()
        self.grammar = GrammarNeed(submit.grammar, submit.cache_salt)

        self.lane = 0
        self.state = State.PLACING
        self.run = 0
        """The number of admissions so far: rows that name an earlier run are ignored."""
        self.num_losses = 0
        """The number of ranks that were lost under the request since its last token."""

        self.sources: dict[str, int] | None = None
        """The number of prompt tokens by source; None until the first admission is complete."""
        self.source_ranges: list[tuple[int, int, PageSource]] = []
        self.admitted_s: float | None = None
        self.first_token_s: float | None = None
        self._progress: DecodeProgress | None = None
        """What its batch says of all that decode; None while the request does not decode."""

        self.num_shared_pages: int | None = None
        """The number of leading pages shared with an earlier prompt; None: none was compared."""
        self._is_reported = False
        """Whether the client has been told `sources`."""
        self._num_counted_pages = 0
        self.is_returning = False
        """Whether the request goes on where an earlier one has ended."""
        self._num_scored = 0
        """The number of prompt tokens for whose successors the client was told logprobs."""
        self._reset_run()

    def _reset_run(self) -> None:
        self.slot: Slot | None = None
        self.lock: Lock | None = None
        self.table = BlockTable(())
        self.start = NOWHERE
        self.write_start = 0
        self.load: Load | None = None
        self.is_on_device = False
        self._deferred: list[RowOutcome] = []
        self._num_planned = 0
        self._num_computed = 0
        self._num_sampled = self.chain.num_output

    @property
    def ticket(self) -> tuple[RequestId, int]:
        """What names this request for ever, while its id may come again."""
        return self.request_id, self.serial

    def move(self, new: State) -> None:
        """Be in another state from now on. Raises AccountingError if the table lacks the move."""
        require_move(self.request_id, self.state, new)
        self.state = new

    def move_to(self, lane: int) -> None:
        """Let the request wait on this lane, where it has used no page yet."""
        self.move(State.WAITING)
        self.lane = lane
        self._num_counted_pages = 0

    def note_shared(self, num_pages: int) -> None:
        """Note that an earlier prompt began with the same `num_pages` pages."""
        self.num_shared_pages = num_pages

    def renew_prefetch(self) -> None:
        """Forget what HostMemory said of the request's chain."""
        self.prefetch = PrefetchState()

    def begin_run(
        self, slot: Slot, lock: Lock, table: BlockTable, start: Start, now_s: float
    ) -> None:
        """Admitted: it has a slot and holds the pages of `lock`, which `table` names with others.

        The first time counts as the end of its queueing.
        """
        self._reset_run()
        self.run += 1
        self.slot, self.lock, self.table, self.start = slot, lock, table, start
        if self.admitted_s is None:
            self.admitted_s = now_s

    def shorten_start(self, num_pages: int) -> Start:
        """Begin behind fewer cached pages, as L2 has fewer for the request than was known."""
        loads = tuple([[page for page in pages if page < num_pages] for pages in self.start.loads])
        tiers = self.start.tiers[:num_pages]
        self.start = replace(self.start, num_pages=num_pages, tiers=tiers, loads=loads)
        return self.start

    def wait_for_lease(self) -> None:
        """Note that HostMemory was asked for the pages that the request loads."""
        self.move(State.LEASING)

    def start_from(self, num_cached: int) -> None:
        """Run with `num_cached` cached tokens; the last known token is computed in any case."""
        self.move(State.PREFILLING)
        self._num_planned = self._num_computed = min(num_cached, self.num_tokens - 1)
        self.write_start = num_cached

    @property
    def is_decoding(self) -> bool:
        """Whether a batch keeps the request's progress."""
        return self._progress is not None

    @property
    def is_loading(self) -> bool:
        """Whether pages that the request loads from L2 are not there yet."""
        return self.state in (State.LEASING, State.LOADING)

    @property
    def unhealed(self) -> tuple[Sequence[int], ...]:
        """Per KV group, pages before the end of `lock` that are its own until its load is done.

        Windows lack them in the tree, which they heal then.
        """
        end = self.num_held_pages if self.is_loading else 0
        return tuple([pages[: bisect.bisect_left(pages, end)] for pages in self.start.loads])

    def lose_lane(self) -> None:
        """Give up the lane where the request waits, whose ranks are lost."""
        self.move(State.PLACING)

    def stop_running(self) -> None:
        """Let the request wait again; the lane has given back what it held."""
        self.move(State.WAITING)
        self._reset_run()
        self.run += 1

    def leave_hint(self) -> None:
        """Leave the hint of what comes next to the engine where the request goes on."""
        self.submit = replace(self.submit, retention=None)

    def end(self) -> None:
        """End the request; the lane has given back what it held."""
        self.move(State.ENDED)
        self._reset_run()
        self.run += 1

    def note_sources(
        self, ranges: list[tuple[int, int, PageSource]], tokens_by_source: dict[str, int]
    ) -> None:
        """Note where the request's prompt comes from."""
        self.source_ranges, self.sources = ranges, tokens_by_source

    def forget_sources(self) -> None:
        """Forget where the prompt comes from, as its load brought nothing: it is noted anew.

        Unless the client was told, or the prompt is scored: that was computed in an earlier run.
        """
        if not self._is_reported and not self._num_scored:
            self.sources = None

    def report_sources(self, *, has_ended: bool) -> dict[str, int] | None:
        """What the client is to be told, once, of where the prompt came from; None: not now."""
        if self._is_reported or (self.sources is None and not has_ended):
            return None
        self._is_reported = True
        return self.sources or {PageSource.CANCELLED.label: self.num_prompt}

    def wait_for_load(self, load: Load) -> None:
        """Note that a load brings pages of the table: rows on top of them count once it is done."""
        self.move(State.LOADING)
        self.load = load

    def defer(self, outcome: RowOutcome) -> None:
        """Keep the outcome of a row on top of the load until the load is done."""
        self._deferred.append(outcome)

    def finish_load(self) -> list[RowOutcome]:
        """Take in that the load is done; returns the outcomes that count now."""
        self.move(State.PREFILLING)
        self.load = None
        deferred, self._deferred = self._deferred, []
        return deferred

    def join(self, progress: DecodeProgress) -> None:
        """Let a batch keep the request's progress from now on, where it reads it."""
        self.move(State.DECODING)
        self._progress = progress

    def leave(self, *, num_sampled: int) -> None:
        """Keep the progress here again, before the run ends; all known tokens were handed over."""
        self._progress = None
        self._num_sampled = num_sampled
        self._num_planned = self.num_prompt + num_sampled - 1
        self._num_computed = self.num_prompt + self.chain.num_output - 1

    def introduce(self) -> AddedRequest | None:
        """What the device is told of the request once in each run; None if it was told."""
        assert self.slot is not None, "only a running request is on the device"
        if self.is_on_device:
            return None
        self.is_on_device = True
        return AddedRequest(
            slot=self.slot,
            request_id=self.request_id,
            token_ids=self.chain.token_ids(),
            num_prompt_tokens=self.num_prompt,
            sampling=self.submit.sampling.with_grammar(self.grammar.key),
            num_scored_tokens=self._num_scored,
        )

    def plan_row(self, num_tokens: int) -> int | None:
        """Plan a row of so many tokens; returns the output position that it samples, if any."""
        self._num_planned += num_tokens
        if self._num_planned < self.num_target:
            return None
        self._num_sampled += 1
        return self._num_sampled - 1

    def finish_row(self, num_computed: int) -> None:
        """Note that an acknowledged row has computed all tokens before this one."""
        self._num_computed = num_computed

    def add_prompt_logprobs(self, logprobs: PromptLogprobs) -> None:
        """Take the logprobs of more prompt tokens, which come in order and without gaps."""
        if logprobs.start != self._num_scored + 1:
            raise AccountingError(
                f"{self.request_id} got prompt logprobs from token {logprobs.start}; expected them "
                f"from {self._num_scored + 1}"
            )
        self._num_scored += len(logprobs)

    def add_output(self, token_ids: Int32Array) -> None:
        """Take sampled tokens that became known."""
        if self.must_score:
            raise AccountingError(
                f"{self.request_id} has output, but {self._num_scored} prompt logprobs alone"
            )
        self.chain.append(token_ids)

    def note_first_token(self, now_s: float) -> bool:
        """Note that the request has a token; returns whether it is the first."""
        if self.first_token_s is not None:
            return False
        self.first_token_s = now_s
        return True

    def note_loss(self) -> None:
        """Note that a rank was lost under the request."""
        self.num_losses += 1

    def acquit(self) -> bool:
        """Clear the request of suspicion, as it sampled a token; True: it was a suspect."""
        was_suspected, self.num_losses = self.num_losses > 0, 0
        return was_suspected

    def count_pages(self) -> range:
        """Take the pages in the tree that were not yet counted as used by it on its lane."""
        uncounted = range(self._num_counted_pages, self.num_held_pages)
        self._num_counted_pages = max(self._num_counted_pages, self.num_held_pages)
        return uncounted

    def note_return(self) -> None:
        """Note that the request goes on where an earlier one has ended."""
        self.is_returning = True

    @property
    def must_score(self) -> bool:
        """Whether logprobs of the prompt were asked for and some are missing."""
        is_asked = self.submit.sampling.num_prompt_logprobs is not None
        return is_asked and self._num_scored < self.num_prompt - 1

    @property
    def max_cached_tokens(self) -> int:
        """The number of tokens that it may take from a cache, which holds no logits to score."""
        return self._num_scored if self.must_score else self.num_tokens

    @property
    def num_output(self) -> int:
        """The number of known output tokens."""
        if self._progress is None:
            return self.chain.num_output
        return int(self._progress.num_known[self.slot])

    @property
    def num_tokens(self) -> int:
        """The number of known tokens, of prompt and output."""
        return self.num_prompt + self.num_output

    @property
    def num_sampled(self) -> int:
        """The number of output tokens that were planned."""
        if self._progress is None:
            return self._num_sampled
        return int(self._progress.num_sampled[self.slot])

    @property
    def num_planned(self) -> int:
        """The number of tokens whose keys and values are in plans that were sent."""
        return self._num_planned if self._progress is None else self.num_target - 1

    @property
    def num_computed(self) -> int:
        """The number of tokens whose keys and values are in plans that were acknowledged."""
        return self._num_computed if self._progress is None else self.num_tokens - 1

    @property
    def has_rows_in_flight(self) -> bool:
        """Whether a plan that was sent and not acknowledged may name the request's pages."""
        return self.num_planned > self.num_computed

    @property
    def num_target(self) -> int:
        """The number of tokens that exist, here or on the device, and so may be planned."""
        return self.num_prompt + self.num_sampled

    @property
    def num_to_plan(self) -> int:
        """The number of tokens still to be planned; none once the last output token was."""
        return 0 if self.num_sampled >= self.max_tokens else self.num_target - self.num_planned

    @property
    def num_held_pages(self) -> int:
        """The number of the table's pages that `lock` holds in the tree, but for `unhealed`."""
        return 0 if self.lock is None else self.lock.num_pages

    @property
    def is_suspect(self) -> bool:
        """Whether the request may be what ends the ranks that it runs on."""
        return self.num_losses >= MAX_LOSSES
