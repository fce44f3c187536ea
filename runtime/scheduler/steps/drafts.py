"""Rows of the next step of a step group's lanes, within a budget and the free pages."""

import math
from collections.abc import Sequence

from raydix.ids import TransferId
from raydix.runtime.scheduler.counters import Count, Counters
from raydix.runtime.scheduler.life.admission_turns import AdmissionTurns, Backlog
from raydix.runtime.scheduler.life.transitions import Transitions
from raydix.runtime.scheduler.prompt_shares import PromptWork, StepRoom, share_out
from raydix.runtime.scheduler.ranks.lane import Lane
from raydix.runtime.scheduler.rates import Rates
from raydix.runtime.scheduler.request.request import RequestState
from raydix.runtime.scheduler.request.request_order import level_of
from raydix.runtime.scheduler.request.state import COMPUTING, State
from raydix.runtime.scheduler.request.transfers import Load
from raydix.runtime.scheduler.settings import SchedulerSettings
from raydix.runtime.scheduler.steps.draft import Draft, GroupWork
from raydix.runtime.scheduler.steps.mixture import StepTimes, shared_tokens, tokens_beside_decodes
from raydix.runtime.scheduler.steps.standing import may_stand, repeated
from raydix.runtime.scheduler.timers import Timers


class Drafter:
    """Drafts the rows of a step group's lanes."""

    def __init__(
        self,
        settings: SchedulerSettings,
        *,
        rates: Rates,
        turns: AdmissionTurns,
        life: Transitions,
        timers: Timers,
        counters: Counters,
    ) -> None:
        self._settings = settings
        self._rates = rates
        self._turns = turns
        self._life = life
        self._timers = timers
        self._counters = counters

    def draft_rows(self, drafts: Sequence[tuple[Lane, Draft]], now_s: float) -> None:
        """Draft rows for all lanes of a step group: decodes first, then prompts and new requests.

        Requests count on what is drafted: drafts of which one has rows have to be sent.
        """
        for lane, draft in drafts:
            self._draft_decodes(lane, draft)
        work = GroupWork.of(drafts)
        for lane, draft in drafts:
            self._set_budget(lane, draft, work, now_s)
            self._draft_prompts(lane, draft, now_s)
            if draft.decodes is not None:
                if may_stand(lane, draft):
                    draft.repeat_decodes(repeated(lane, draft.decodes))
                draft.add_tables(lane.take_changed_tables())

    def _draft_prompts(self, lane: Lane, draft: Draft, now_s: float) -> None:
        if lane.waiting.wake_some():
            self._timers.add(now_s)
        # Before any prompt gets a row, as who comes now may go before those that are in chunks.
        if lane.waiting.has_turns:
            backlog = self._backlog(lane, draft, now_s)
            self._turns.admit_waiting(lane, now_s, backlog)
        self._draft_prefills(lane, draft, now_s)

        while not draft.has_rows and lane.is_at_rest:
            stuck = [request for request in lane.running.values() if request.state in COMPUTING]
            if len(stuck) < 2:
                return
            # Several half-computed prompts hold all pages: the worst of them starts over.
            self._retract(_choose_victim(stuck))
            self._draft_decodes(lane, draft)
            self._draft_prefills(lane, draft, now_s)

    def _set_budget(self, lane: Lane, draft: Draft, work: GroupWork, now_s: float) -> None:
        """Decide how many prompt tokens the step may take, in whole pages: at least one."""
        settings = self._settings
        # A prompt that is not cut has a step of its own size. Most steps have no prompt to cut.
        if not settings.chunked_prefill or not work.num_prompts:
            return

        prefill = self._rates.prefill.line(now_s)
        times = StepTimes(
            decodes_s=self._rates.decode.predict_s(work.most_decodes, now_s),
            mixed_s=prefill.predict_s(draft.num_rows),
            token_s=prefill.unit_s,
        )
        most = tokens_beside_decodes(
            times,
            num_decodes=work.num_decodes,
            num_prompts=work.num_prompts,
            max_slowdown=settings.max_decode_slowdown,
        )

        size = settings.page_size
        budget = max(size, int(min(settings.prefill_budget_tokens, most)) // size * size)
        shared = int(min(budget, shared_tokens(times, _waiting_tokens(lane))))
        draft.set_budget(budget, shared)

    def _backlog(self, lane: Lane, draft: Draft, now_s: float) -> Backlog:
        """The prompt tokens that admitted requests leave to later steps.

        Whoever still waits for a load keeps nobody else from being admitted.
        """
        ready = self._ready_prompts(lane, draft, now_s) if lane.prefilling else []
        works = [self._work_of(request) for request in ready]
        parts = share_out(works, draft.room)
        left = [
            work.less(num_tokens)
            for request, work, num_tokens in zip(ready, works, parts, strict=True)
            if request.load is None
        ]
        return Backlog(self._settings, left)

    def _draft_decodes(self, lane: Lane, draft: Draft) -> None:
        """A row for each request of the batch that has, or gets, a place for its next token."""
        short = [lane.batch.request(slot) for slot in lane.batch.short_slots()]
        if short:
            self._make_room(lane, len(short))
        for request in short:
            if request.is_decoding:
                self._extend_table(lane, request)

        planned = lane.batch.plan()
        if planned is not None:
            draft.add_decodes(planned)

    def _make_room(self, lane: Lane, num_short: int) -> None:
        """Evict pages for all short requests at once, and for the next ones, too.

        To evict a page costs 20 us, and to evict sixteen 27. In most steps of a full lane one
        lacks.
        """
        few_pages = self._settings.few_pages
        if not lane.l1.pools.has_free((num_short,) * len(few_pages)):
            lane.l1.make_room(tuple([num_short + few for few in few_pages]))

    def _extend_table(self, lane: Lane, request: RequestState) -> None:
        """Give a decoding request its next page; if none can come free, retract the worst one."""
        while True:
            if lane.grow_table(request, 1):
                return
            # Pages in quarantine will be free soon: the request waits a step for them.
            if lane.l1.can_free((1,) * self._settings.num_groups):
                return

            states = (State.PREFILLING, State.DECODING)
            running = [other for other in lane.running.values() if other.state in states]
            if len(running) < 2:
                return

            victim = _choose_victim(running)
            self._retract(victim)
            if victim is request:
                return

    def _retract(self, request: RequestState) -> None:
        self._counters.count(Count.RETRACTED_REQUESTS)
        self._life.requeue(request)

    def _draft_prefills(self, lane: Lane, draft: Draft, now_s: float) -> None:
        """Draft rows of requests outside the batch: single tokens first, as they take no budget."""
        if not lane.prefilling:
            return
        for request in list(lane.prefilling.values()):
            if request.num_to_plan != 1 or request.state not in COMPUTING:
                continue
            if self._is_due(lane, draft, request, 1, now_s):
                self._draft_row(lane, draft, request, 1)

        # Where a prompt gets no pages, others have its share.
        left = self._ready_prompts(lane, draft, now_s)
        has_failed = True
        while has_failed and left and draft.room.budget_tokens > 0:
            works = [self._work_of(request) for request in left]
            parts = share_out(works, draft.room)
            _let_others_lead(lane, left, works, parts, draft.room)
            has_failed = False
            for request, num_tokens in zip(left, parts, strict=True):
                if not num_tokens:
                    continue
                if self._draft_row(lane, draft, request, num_tokens):
                    draft.charge(num_tokens)
                else:
                    has_failed = True
            left = [request for request, part in zip(left, parts, strict=True) if not part]

    def _ready_prompts(self, lane: Lane, draft: Draft, now_s: float) -> list[RequestState]:
        """Admitted requests that could compute more than a token now, in the order of admission."""
        return [
            request
            for request in list(lane.prefilling.values())
            if request.state in COMPUTING
            and (num_tokens := request.num_to_plan) > 1
            and self._is_due(lane, draft, request, min(num_tokens, draft.room.budget_tokens), now_s)
        ]

    def _work_of(self, request: RequestState) -> PromptWork:
        return PromptWork(
            num_planned=request.num_planned,
            num_tokens=request.num_to_plan,
            level=level_of(request, self._settings),
            priority=request.submit.priority,
        )

    def _draft_row(self, lane: Lane, draft: Draft, request: RequestState, num_tokens: int) -> bool:
        """Draft a row for `num_tokens` tokens of a request, if there are pages for them."""
        num_pages = -(-(request.num_planned + num_tokens) // self._settings.page_size)
        num_more = num_pages - len(request.table)
        if num_more > 0 and not lane.grow_table(request, num_more):
            return False

        _add_row(lane, draft, request, num_tokens)
        return True

    def _is_due(
        self, lane: Lane, draft: Draft, request: RequestState, num_tokens: int, now_s: float
    ) -> bool:
        """Whether a row of so many tokens, which waits for its load layer by layer, may be sent.

        It is sent once its load will end within the row's own compute: before that it would only
        hold up what is queued behind it, and the decodes beside it. A load that ends sooner than
        was predicted is waited for no longer, and one that ends later shows it.
        """
        load = request.load
        if load is None:
            return True
        if load.sent_s is None:
            return False

        early_s = self._load_end_s(lane, draft, load, now_s) - now_s
        early_s -= self._rates.prefill.predict_s(num_tokens, now_s)
        if draft.decodes is None:
            # Nobody waits beside it while its layers are enqueued.
            early_s -= self._settings.launch_s
        # Less than the clock can tell is not early: it would be woken now, and now again, for ever.
        due_s = now_s + early_s
        if due_s <= now_s:
            return True
        if load.alarm.advance(due_s, now_s):
            self._timers.add(due_s)
        return False

    def _load_end_s(self, lane: Lane, draft: Draft, load: Load, now_s: float) -> float:
        """When a load under way will end; that of all is computed once for each draft."""
        if draft.load_ends_s is None:
            draft.note_load_ends(self._load_ends_s(lane, now_s))
        return draft.load_end_s(load)

    def _load_ends_s(self, lane: Lane, now_s: float) -> dict[TransferId, float]:
        """When each load under way will end, behind those that were sent before it."""
        ends_s: dict[TransferId, float] = {}
        end_s = -math.inf
        for load in lane.in_flight.loads():
            assert load.sent_s is not None, "it is under way"
            num_bytes = self._settings.bytes_of(map(len, load.page_ids))
            end_s = max(end_s, load.sent_s) + self._rates.load.predict_s(num_bytes, now_s)
            ends_s[load.transfer_id] = end_s
        return ends_s


def _waiting_tokens(lane: Lane) -> float:
    """Prompt tokens to compute; a request not yet admitted counts as the mean of the others."""
    admitted = [num for each in lane.prefilling.values() if (num := each.num_to_plan) > 1]
    return sum(admitted) * (1.0 + len(lane.waiting) / max(1, len(admitted)))


def _choose_victim(running: list[RequestState]) -> RequestState:
    """The request to retract: worst priority, then shortest output, then longest input."""
    return max(running, key=lambda r: (r.submit.priority, -r.num_output, r.num_prompt, r.arrival_s))


def _let_others_lead(
    lane: Lane,
    requests: Sequence[RequestState],
    works: Sequence[PromptWork],
    parts: Sequence[int],
    room: StepRoom,
) -> None:
    """Let no request wait for the pages of a prompt that a long one keeps from being computed."""
    cut = [work.less(part) for work, part in zip(works, parts, strict=True) if part]
    if any(map(room.is_long, cut)):
        for request, part in zip(requests, parts, strict=True):
            if not part:
                lane.lead(request, None)


def _add_row(lane: Lane, draft: Draft, request: RequestState, num_tokens: int) -> None:
    start = request.num_planned
    position = lane.plan_row(request, num_tokens)
    draft.add_row(request, start, num_tokens, position)
